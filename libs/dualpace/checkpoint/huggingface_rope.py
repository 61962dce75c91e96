"""Rope settings of a config.json.

transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters: both are read.

LongRoPE is served up to the original context only: within it the short factors hold for every
position, so that keys already cached never need other frequencies.
"""

import math
from collections.abc import Callable

from dualpace.checkpoint.config import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from dualpace.checkpoint.fields import Fields
from dualpace.core.errors import CheckpointError


def parse_rope(
    fields: Fields,
    *,
    head_dim: int,
    context: int,
    default_theta: float = 10_000.0,
    theta_field: str = "rope_theta",
    layer_type: str | None = None,
) -> RopeConfig:
    """Return the rope of a model, or of its layers of one type where it has several.

    Raises CheckpointError for types other than default, linear, llama3, yarn and longrope.
    """
    settings = fields.sub("rope_parameters")
    if settings is not None and layer_type is not None:
        settings = settings.sub(layer_type)
    elif settings is not None and "full_attention" in settings:
        raise CheckpointError(
            f"{settings.where}: settings by layer type are not supported for this architecture"
        )
    if settings is None:
        settings = fields.sub("rope_scaling") if theta_field == "rope_theta" else None
    if settings is None:
        settings = Fields({}, fields.where)
    theta = settings.optional_number("rope_theta") or fields.number(theta_field, default_theta)
    partial = settings.optional_number("partial_rotary_factor") or fields.number(
        "partial_rotary_factor", 1.0
    )
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(
            f"{fields.where}: partial_rotary_factor {partial} of head_dim {head_dim} gives "
            f"{rotary_dim} rotated dimensions; an even number of at most head_dim is needed"
        )
    return RopeConfig(
        theta=theta, rotary_dim=rotary_dim, scaling=_scaling(settings, fields, rotary_dim, context)
    )


def rope_context(fields: Fields, context: int) -> int:
    """Return how many positions may be served, given max_position_embeddings."""
    settings = fields.sub("rope_parameters") or fields.sub("rope_scaling")
    if settings is None:
        return context
    kind = _rope_type(settings)
    if kind in _LONGROPE_NAMES:
        return min(context, _original_context(settings, fields, context))
    if kind == "yarn":  # some files give the stretched length, some the original one
        stretched = settings.number("factor") * _original_context(settings, fields, context)
        return max(context, int(stretched))
    return context


_LONGROPE_NAMES = ("longrope", "su")


def _rope_type(settings: Fields) -> str:
    return settings.text("rope_type", settings.text("type", "default"))


def _original_context(settings: Fields, fields: Fields, context: int) -> int:
    name = "original_max_position_embeddings"
    return fields.integer(name) if name in fields else settings.integer(name, context)


def _scaling(settings: Fields, fields: Fields, rotary_dim: int, context: int) -> RopeScaling | None:
    kind = _rope_type(settings)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=settings.number("factor"))
    original = _original_context(settings, fields, context)
    parsers: dict[str, Callable[[], RopeScaling]] = {
        "llama3": lambda: _llama3(settings, original),
        "yarn": lambda: _yarn(settings, original),
        **{
            name: lambda: _longrope(settings, original, rotary_dim, context)
            for name in _LONGROPE_NAMES
        },
    }
    if kind not in parsers:
        raise CheckpointError(
            f"{settings.where}: rope type {kind!r} is not supported; supported are default, "
            "linear, llama3, yarn and longrope"
        )
    return parsers[kind]()


def _llama3(settings: Fields, original: int) -> Llama3Scaling:
    return Llama3Scaling(
        factor=settings.number("factor"),
        low_freq_factor=settings.number("low_freq_factor"),
        high_freq_factor=settings.number("high_freq_factor"),
        original_context=original,
    )


def _yarn(settings: Fields, original: int) -> YarnScaling:
    """Read YaRN.

    The default attention factor is that of arXiv 2309.00071 section 3.4, as transformers extends
    it.
    """
    factor = settings.number("factor")

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention = settings.optional_number("attention_factor")
    if attention is None:
        weight = settings.optional_number("mscale")
        over = settings.optional_number("mscale_all_dim")
        attention = mscale(weight) / mscale(over) if weight and over else mscale(1.0)
    return YarnScaling(
        factor=factor,
        original_context=original,
        beta_fast=settings.number("beta_fast", 32.0),
        beta_slow=settings.number("beta_slow", 1.0),
        truncate=settings.boolean("truncate", True),
        attention_factor=attention,
    )


def _longrope(settings: Fields, original: int, rotary_dim: int, context: int) -> FrequencyFactors:
    """Read LongRoPE (arXiv 2402.13753).

    The attention factor is that paper's, from the stretched context.
    """
    factors = settings.numbers("short_factor", rotary_dim // 2)
    if factors is None:
        settings.fail("short_factor", None, f"a list of {rotary_dim // 2} numbers")
    stretch = settings.optional_number("factor") or context / original
    attention = settings.optional_number("attention_factor")
    if attention is None:
        attention = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return FrequencyFactors(factors=tuple(factors), attention_factor=attention)
