"""The only module that reads checkpoints: from a model on disk to a `ServedModel`."""

import logging
from dataclasses import asdict
from pathlib import Path

from dualpace.checkpoint import GenerationDefaults, end_token_ids, open_checkpoint
from dualpace.gateway.text.model import SamplingDefaults, ServedModel, served_model

log = logging.getLogger(__name__)


def load_model(
    path: Path, names: tuple[str, ...] = (), *, tool_dialect: str = "auto"
) -> ServedModel:
    """Open a model; without names it is served under that of its folder or file.

    Raises CheckpointError.
    """
    checkpoint = open_checkpoint(path)
    assets = checkpoint.tokenizer()
    special = {
        "bos_token": assets.bos_token,
        "eos_token": assets.eos_token,
        "pad_token": assets.pad_token,
    }
    model = served_model(
        names or (path.resolve().name.removesuffix(".gguf"),),
        assets.tokenizer,
        chat_template=assets.chat_template,
        special_tokens={name: text for name, text in special.items() if text is not None},
        eos_token_ids=end_token_ids(checkpoint.generation, assets),
        defaults=_defaults(checkpoint.generation),
        tool_dialect=tool_dialect,
        fingerprint=checkpoint.fingerprint,
    )
    log.info(
        "serving %s; end tokens %s; sampling defaults: %s; %s chat template; tools: %s",
        ", ".join(model.names),
        ", ".join(map(str, model.eos_token_ids)) or "none",
        ", ".join(f"{name} {value}" for name, value in asdict(model.defaults).items()),
        "with a" if model.template else "no",
        model.tool_dialect.name if model.tool_dialect else "in an unknown form",
    )
    return model


def _defaults(generation: GenerationDefaults) -> SamplingDefaults:
    given = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "min_p": generation.min_p,
        "repetition_penalty": generation.repetition_penalty,
    }
    return SamplingDefaults(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
