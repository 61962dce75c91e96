"""Times vLLM's CPU paged attention alone. Runs in vLLM's environment.

    vllm_attention.py HEADS DTYPE HEAD_DIM BATCH CONTEXT THREADS POOL_MIB REPEATS ISA

prints `RATE <GB of KV per second>`, of the faster of the block sizes that the kernel is made for.
The kernel takes its activations in the KV's own type. An ISA of avx2 is refused where the loaded
library is of another level.
"""

import statistics
import sys
from pathlib import Path
from time import perf_counter

import torch
from vllm import _custom_ops as ops
from vllm.platforms import current_platform

BLOCK_SIZES = (32, 128)


def loaded_library() -> str:
    """Return the file name of the library that holds the kernels."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    names = {Path(word).name for word in maps if "_C" in Path(word).name and word.endswith(".so")}
    return ", ".join(sorted(names))


def rate(arguments: list[str], block_size: int) -> float:
    """Return GB of KV per second; every call reads another layer."""
    heads, kv_heads = map(int, arguments[0].split("/"))
    dtype = getattr(torch, arguments[1])
    head_dim, batch, context, _, pool_mib, repeats = map(int, arguments[2:8])
    blocks = -(-context // block_size)
    shape = (batch * blocks, kv_heads, 2 * block_size, head_dim)
    layer = torch.randn(shape).to(dtype)
    layers = [layer.clone() for _ in range(max(2, (pool_mib << 20) // layer.nbytes))]
    caches = [cache.chunk(2, dim=2) for cache in layers]
    tables = torch.randperm(batch * blocks).to(torch.int32).view(batch, blocks)
    lengths = torch.full((batch,), context, dtype=torch.int32)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    query = torch.randn(batch, heads, head_dim).to(dtype)
    out = torch.empty_like(query)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=batch,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        seq_lens=lengths,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa="vec",
        enable_kv_split=True,
        dynamic_causal=None,
        kv_cache_dtype="auto",
    )

    def attend() -> None:
        for keys, values in caches:
            ops.cpu_attention_with_kv_cache(
                query=query,
                key_cache=keys,
                value_cache=values,
                output=out,
                query_start_loc=starts,
                seq_lens=lengths,
                scale=head_dim**-0.5,
                causal=True,
                alibi_slopes=None,
                sliding_window=-1,
                block_table=tables,
                softcap=0.0,
                scheduler_metadata=metadata,
                s_aux=None,
                dynamic_causal=None,
                k_scale=1.0,
                v_scale=1.0,
                kv_cache_dtype="auto",
            )

    attend()
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        attend()
        seconds.append((perf_counter() - start) / len(caches))
    kv_bytes = batch * context * kv_heads * head_dim * 2 * layer.element_size()
    return kv_bytes / statistics.median(seconds) / 1e9


def main() -> None:
    """Print the rate."""
    arguments = sys.argv[1:]
    torch.set_num_threads(int(arguments[5]))
    current_platform.import_kernels()
    if arguments[8] == "avx2" and "AVX2" not in loaded_library():
        sys.exit(f"its library on this processor is {loaded_library()}, not AVX2's")
    print("RATE", max(rate(arguments, size) for size in BLOCK_SIZES))


main()
