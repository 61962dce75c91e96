"""Times ONNX Runtime GenAI's static batch, greedy, from token 1 to the last."""

import json
from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime_genai as og
from cpu.cells import Cell, peer_arguments, report


def set_threads(model: Path, threads: int) -> None:
    """Write the number of threads where ONNX Runtime looks for it."""
    path = model / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    options = config["model"]["decoder"].setdefault("session_options", {})
    options["intra_op_num_threads"] = threads
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def main() -> None:
    """Measure the cells."""
    arguments = peer_arguments(("float32",))
    set_threads(Path(arguments.model), arguments.threads)
    model = og.Model(arguments.model)
    random = np.random.default_rng(0)

    def speed(cell: Cell) -> float:
        length = cell.context + arguments.tokens + 1
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(
            batch_size=cell.batch, max_length=length, min_length=length, do_sample=False
        )
        generator = og.Generator(model, parameters)
        ids = random.integers(10, 30000, (cell.batch, cell.context)).astype(np.int32)
        generator.append_tokens(ids)
        generator.generate_next_token()
        start = perf_counter()
        for _ in range(arguments.tokens):
            generator.generate_next_token()
        return float(cell.batch * arguments.tokens / (perf_counter() - start))

    speed(Cell(1, 16))
    report(
        "onnxruntime-genai",
        arguments,
        lambda cell: ([speed(cell) for _ in range(arguments.repeats)], None),
    )


main()
