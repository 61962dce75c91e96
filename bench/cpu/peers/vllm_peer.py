"""Times vLLM's CPU backend over KV that is filled in rather than computed.

From the step in which every request has a token to the last before the first one ends.
"""

import os
from argparse import Namespace
from random import Random
from time import perf_counter
from typing import Any

import torch
from cpu.cells import Cell, peer_arguments, report

FORMATS = ("float32", "bfloat16", "float16")


def make_engine(arguments: Namespace) -> Any:
    """Return vLLM's engine, in this process."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{arguments.threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if os.environ.get("DUALPACE_MAX_ISA") == "avx2":
        # What vLLM chooses one of its three builds by.
        for name in ("_is_avx512_supported", "_is_avx512_bf16_supported"):
            setattr(torch.cpu, name, lambda: False)
    from vllm import LLM  # noqa: PLC0415 - reads the variables

    return LLM(
        model=arguments.model,
        dtype=arguments.format,
        skip_tokenizer_init=True,
        max_model_len=2048,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        disable_log_stats=True,
        kv_transfer_config={"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"},
    ).llm_engine


def decode_speed(engine: Any, cell: Cell, tokens: int, seed: int) -> float:
    """Return decoded tokens per second of one batch."""
    from vllm import SamplingParams  # noqa: PLC0415

    parameters = SamplingParams(
        temperature=0, max_tokens=tokens + 8, ignore_eos=True, detokenize=False
    )
    random = Random(seed)  # noqa: S311
    for index in range(cell.batch):
        ids = [random.randrange(10, 30000) for _ in range(cell.context)]
        name = f"{seed}-{cell.context}-{index}"
        engine.add_request(name, {"prompt_token_ids": ids}, parameters)
    counts: dict[str, int] = {}
    window = []
    finished = False
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = perf_counter()
        for output in outputs:
            counts[output.request_id] = len(output.outputs[0].token_ids)
            finished |= output.finished
        if len(counts) == cell.batch and not finished:
            window.append((now, sum(counts.values())))
    window = window[: tokens + 1]
    (start, before), (end, after) = window[0], window[-1]
    return (after - before) / (end - start)


def main() -> None:
    """Measure the cells."""
    arguments = peer_arguments(FORMATS)
    engine = make_engine(arguments)
    decode_speed(engine, Cell(2, 32), 4, -1)

    def measure(cell: Cell) -> tuple[list[float], None]:
        seeds = range(arguments.repeats)
        return [decode_speed(engine, cell, arguments.tokens, seed) for seed in seeds], None

    report("vllm", arguments, measure)


main()
