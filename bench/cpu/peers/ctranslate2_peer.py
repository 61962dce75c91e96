"""Times CTranslate2's greedy generation: that of all tokens, less that of the first alone."""

import json
from pathlib import Path
from random import Random
from time import perf_counter

import ctranslate2
from cpu.cells import Cell, peer_arguments, report

COMPUTE = {"float32": "float32", "int8": "int8_float32"}


def name_special_tokens(model: Path) -> None:
    """Write some word where the converter found none: CTranslate2 loads no model without."""
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    words = json.loads((model / "vocabulary.json").read_text(encoding="utf-8"))
    for name in ("bos_token", "eos_token", "unk_token"):
        config[name] = config.get(name) or words[0]
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def main() -> None:
    """Measure the cells."""
    arguments = peer_arguments(tuple(COMPUTE))
    name_special_tokens(Path(arguments.model))
    generator = ctranslate2.Generator(
        arguments.model,
        device="cpu",
        compute_type=COMPUTE[arguments.format],
        inter_threads=1,
        intra_threads=arguments.threads,
    )
    vocabulary = Path(arguments.model) / "vocabulary.json"
    words = json.loads(vocabulary.read_text(encoding="utf-8"))

    def generate(cell: Cell, tokens: int, seed: int) -> tuple[float, int]:
        random = Random(seed)  # noqa: S311
        prompts = [
            [words[random.randrange(100, 30000)] for _ in range(cell.context)]
            for _ in range(cell.batch)
        ]
        start = perf_counter()
        results = generator.generate_batch(
            prompts,
            max_batch_size=0,
            max_length=tokens,
            min_length=tokens,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            end_token=[],
        )
        return perf_counter() - start, sum(len(r.sequences_ids[0]) for r in results)

    def speed(cell: Cell, seed: int) -> float:
        generate(cell, 1, seed)  # the first prompts of a size take longer, which is no one's token
        first, one_each = generate(cell, 1, seed)
        whole, all_tokens = generate(cell, arguments.tokens + 1, seed)
        if whole <= first:
            raise ValueError(f"{arguments.tokens} more tokens took no longer: ask for more")
        return (all_tokens - one_each) / (whole - first)

    generate(Cell(1, 16), 4, 0)
    report(
        "ctranslate2",
        arguments,
        lambda cell: ([speed(cell, seed) for seed in range(arguments.repeats)], None),
    )


main()
