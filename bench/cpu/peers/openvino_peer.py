"""Times OpenVINO GenAI's continuous batching.

From the step in which every request has a token to the last before the first one ends.
"""

import json
import math
from argparse import Namespace
from pathlib import Path
from random import Random
from time import perf_counter

import numpy as np
import openvino
import openvino_genai
from cpu.cells import Cell, peer_arguments, report

KV = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "u8"}
HINT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "f32"}
PROMPT_TOKENS_A_STEP = 2048
BLOCK_TOKENS = 32


def extra_steps(cell: Cell) -> int:
    """Return how long requests whose prompt was computed first decode while the others' are."""
    return -(-cell.batch * cell.context // PROMPT_TOKENS_A_STEP) + 3


def cache_gib(arguments: Namespace) -> int:
    """Return a size that holds the largest cell, and no less than 2."""
    config = json.loads((Path(arguments.model) / "config.json").read_text(encoding="utf-8"))
    width: int = config["num_key_value_heads"] * config["num_hidden_layers"] * config["head_dim"]
    tokens: int = max(
        cell.batch * (cell.context + arguments.tokens + extra_steps(cell) + BLOCK_TOKENS)
        for cell in arguments.cells
    )
    # int8 KV has a scale and a zero for each head beside it.
    bytes_each = {"u8": 1.25, "f32": 4}.get(KV[arguments.format], 2)
    return max(2, math.ceil(2 * tokens * width * bytes_each / (1 << 30)))


def make_pipeline(arguments: Namespace) -> openvino_genai.ContinuousBatchingPipeline:
    """Return a pipeline with a KV cache for every cell."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = PROMPT_TOKENS_A_STEP
    scheduler.max_num_seqs = 256
    scheduler.cache_size = cache_gib(arguments)
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {
        "INFERENCE_PRECISION_HINT": HINT[arguments.format],
        "INFERENCE_NUM_THREADS": arguments.threads,
        "KV_CACHE_PRECISION": KV[arguments.format],
    }
    return openvino_genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)


def decode_speed(
    pipeline: openvino_genai.ContinuousBatchingPipeline, cell: Cell, tokens: int, seed: int
) -> float:
    """Return decoded tokens per second of one batch of random prompts."""
    random = Random(seed)  # noqa: S311
    extra = extra_steps(cell)
    handles = []
    for index in range(cell.batch):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens + extra
        config.ignore_eos = True
        config.do_sample = False
        ids = np.array([[random.randrange(10, 30000) for _ in range(cell.context)]], np.int64)
        handles.append(pipeline.add_request(index, openvino.Tensor(ids), config))
    counts = [0] * cell.batch
    window = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = perf_counter()
        for index, handle in enumerate(handles):
            while handle.can_read():
                counts[index] += sum(len(o.generated_ids) for o in handle.read().values())
        if min(counts) > 0 and max(counts) < tokens + extra:
            window.append((now, sum(counts)))
    window = window[: tokens + 1]
    (start, before), (end, after) = window[0], window[-1]
    return (after - before) / (end - start)


def main() -> None:
    """Measure the cells."""
    arguments = peer_arguments(tuple(KV))
    pipeline = make_pipeline(arguments)
    decode_speed(pipeline, Cell(2, 32), 4, -1)

    def measure(cell: Cell) -> tuple[list[float], None]:
        seeds = range(arguments.repeats)
        return [decode_speed(pipeline, cell, arguments.tokens, seed) for seed in seeds], None

    report("openvino-genai", arguments, measure)


main()
