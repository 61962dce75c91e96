"""Times vLLM's CPU paged attention alone. Runs in vLLM's environment.

    vllm_attention.py LEVEL CELLS

LEVEL is "native", which takes the library that vLLM chooses for this processor, or "avx2", the one
that it chooses where there is no AVX-512. CELLS is a JSON list of objects with heads ("query/kv"),
dtype, head_dim, batch, context, threads, pool_mib and repeats. For each a line is printed: `RATE
<GB of KV per second>`, of the fastest of the block sizes that the kernel is made for, or `REFUSED
<why>`. The kernel takes its activations in the KV's own type.
"""

import json
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

LEVEL, CELLS = sys.argv[1:]
if LEVEL == "avx2":  # vLLM asks, and loads a library, when it is imported
    torch.cpu._is_avx512_supported = lambda: False  # noqa: SLF001

from vllm import _custom_ops as ops  # noqa: E402

BLOCKS = {16: "vec16", 32: "vec", 64: "vec", 128: "vec"}
"""Sizes, and the name of the kernel that vLLM takes for them."""


def loaded_library() -> str:
    """Return the file name of the library that holds the kernels."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    names = {Path(word).name for word in maps if "_C" in Path(word).name and word.endswith(".so")}
    return ", ".join(sorted(names))


def rate(cell: dict[str, Any], block_size: int) -> float:
    """Return GB of KV per second; every call reads another layer."""
    heads, kv_heads = map(int, cell["heads"].split("/"))
    dtype = getattr(torch, cell["dtype"])
    head_dim, batch, context = cell["head_dim"], cell["batch"], cell["context"]
    torch.set_num_threads(cell["threads"])
    blocks = -(-context // block_size)
    shape = (batch * blocks, kv_heads, 2 * block_size, head_dim)
    layer = torch.randn(shape).to(dtype)
    layers = [layer.clone() for _ in range(max(2, (cell["pool_mib"] << 20) // layer.nbytes))]
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
        isa=BLOCKS[block_size],
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
    for _ in range(cell["repeats"]):
        start = perf_counter()
        attend()
        seconds.append((perf_counter() - start) / len(caches))
    kv_bytes = batch * context * kv_heads * head_dim * 2 * layer.element_size()
    return float(kv_bytes / statistics.median(seconds) / 1e9)


def main() -> None:
    """Print a line for each cell."""
    library = loaded_library()
    for cell in json.loads(CELLS):
        if LEVEL == "avx2" and "AVX2" not in library:
            print(f"REFUSED it loaded {library or 'no library'}, not AVX2's", flush=True)
        else:
            print("RATE", max(rate(cell, size) for size in BLOCKS), flush=True)


main()
