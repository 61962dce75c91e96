"""End tokens and sampling defaults that a model's publisher gave."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpace.checkpoint.fields import Fields, load_json_object
from dualpace.checkpoint.tokenizer import TokenizerAssets


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """None means that the publisher gave no value."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read_generation_config(directory: Path, model_config: dict[str, Any]) -> GenerationDefaults:
    """Read generation_config.json; end tokens come from config.json where it has none.

    Raises CheckpointError that names file and field.
    """
    path = directory / "generation_config.json"
    values = load_json_object(path) if path.is_file() else {}
    fields = Fields(values, str(path))
    eos_token_ids = token_ids(fields, "eos_token_id")
    if not eos_token_ids:
        eos_token_ids = token_ids(
            Fields(model_config, str(directory / "config.json")), "eos_token_id"
        )
    return GenerationDefaults(
        eos_token_ids=eos_token_ids,
        temperature=_sampling_number(fields, "temperature"),
        top_p=_sampling_number(fields, "top_p", maximum=1.0, zero=False),
        top_k=fields.integer("top_k", minimum=0) if "top_k" in fields else None,
        min_p=_sampling_number(fields, "min_p", maximum=1.0),
        repetition_penalty=_sampling_number(fields, "repetition_penalty", zero=False),
    )


def end_token_ids(generation: GenerationDefaults, assets: TokenizerAssets) -> tuple[int, ...]:
    """Return every token that ends a text of the model: the publisher's and the tokenizer's."""
    own = () if assets.eos_token_id is None else (assets.eos_token_id,)
    return tuple(dict.fromkeys(generation.eos_token_ids + own))


def token_ids(fields: Fields, name: str) -> tuple[int, ...]:
    """Return a token id field that holds one id or a list of them; () where there is none."""
    value = fields.raw(name)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        fields.fail(name, value, "a token id or a list of token ids")
    return tuple(ids)


def _sampling_number(
    fields: Fields, name: str, *, maximum: float = math.inf, zero: bool = True
) -> float | None:
    value = fields.raw(name)
    if value is None:
        return None
    wanted = "a number of at least 0" if zero else "a number above 0"
    if maximum < math.inf:
        wanted += f" and at most {maximum:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        fields.fail(name, value, wanted)
    if not 0 <= value <= maximum or (value == 0 and not zero):
        fields.fail(name, value, wanted)
    return float(value)
