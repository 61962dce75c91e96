"""Times llama.cpp's own batched benchmark: decode of a batch whose prompt was copied to each.

Each sequence reads a copy of its own. The benchmark feeds random tokens and samples nothing, which
flatters llama.cpp a little. Attention is timed in both of its forms, and the faster is reported.
"""

import json
import os
import subprocess
from argparse import Namespace
from pathlib import Path

from cpu.cells import Cell, peer_arguments, report

KV = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "f16"}


def decode_speeds(
    binary: Path, arguments: Namespace, cell: Cell, flash_attention: str
) -> list[float]:
    """Return decoded tokens per second of each repeat."""
    held = cell.batch * (cell.context + arguments.tokens + 16)
    command = [binary, "-m", Path(arguments.model) / f"{arguments.format}.gguf", "-c", held]
    command += ["-b", 2048, "-ub", 512, "-npp", cell.context, "-ntg", arguments.tokens, "-pps"]
    command += ["-npl", ",".join([str(cell.batch)] * arguments.repeats)]
    command += ["-t", arguments.threads, "-tb", arguments.threads, "-fa", flash_attention]
    command += ["-ctk", KV[arguments.format], "-ctv", KV[arguments.format]]
    command += ["--output-format", "jsonl"]
    result = subprocess.run(  # noqa: S603
        list(map(str, command)), capture_output=True, text=True, check=False
    )
    lines = [line for line in result.stdout.splitlines() if '"speed_tg"' in line]
    if not lines:
        raise RuntimeError((result.stderr.strip().splitlines() or ["no output"])[-1][:200])
    return [json.loads(line[line.index("{") :])["speed_tg"] for line in lines]


def main() -> None:
    """Measure the cells."""
    arguments = peer_arguments(tuple(KV))
    level = "avx2" if os.environ.get("DUALPACE_MAX_ISA") == "avx2" else "native"
    binary = Path(os.environ["DUALPACE_PEERS"]) / "llamacpp" / level / "llama-batched-bench"

    def measure(cell: Cell) -> tuple[list[float], None]:
        speeds, errors = [], []
        for form in ("off", "on"):
            try:
                speeds.append(decode_speeds(binary, arguments, cell, form))
            except RuntimeError as error:
                errors.append(error)
        if not speeds:
            raise errors[0]
        return max(speeds, key=sum), None

    report("llama.cpp", arguments, measure)


main()
