"""A model's tokenizer with what belongs to it: special tokens, templates, the BOS rule.

A Hugging Face directory's tokenizer.json is the whole truth about tokenization; the class that
tokenizer_config.json names is ignored, because some classes replace parts of it. Rendering a
template is not done here.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dualpace.checkpoint.fields import Fields, describe, load_json_object, load_text
from dualpace.core.errors import CheckpointError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerAssets:
    """A ready tokenizer.

    Encode with add_special_tokens=True for raw prompts, False for rendered templates.
    """

    tokenizer: Tokenizer
    chat_template: str | None
    """Source of the default Jinja template, or None."""
    named_templates: Mapping[str, str] = field(default_factory=dict)
    """Further templates by name, such as tool_use."""
    bos_token: str | None = None
    bos_token_id: int | None = None
    eos_token: str | None = None
    eos_token_id: int | None = None
    pad_token: str | None = None
    pad_token_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    """Ids whose text is not shown."""
    add_bos: bool = False
    """Encoding with add_special_tokens=True puts the BOS token first."""


def assemble(
    tokenizer: Tokenizer,
    tokens: Mapping[str, str | None],
    chat_template: str | None,
    named_templates: Mapping[str, str] | None = None,
) -> TokenizerAssets:
    """Put assets together. `tokens` maps bos_token, eos_token and pad_token to texts.

    Truncation and padding, which files may carry from training, are switched off.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = {
        name: None if text is None else tokenizer.token_to_id(text) for name, text in tokens.items()
    }
    encoded = tokenizer.encode("a", add_special_tokens=True).ids
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    bos = ids.get("bos_token")
    added = tokenizer.get_added_tokens_decoder()
    return TokenizerAssets(
        tokenizer=tokenizer,
        chat_template=chat_template,
        named_templates=dict(named_templates or {}),
        bos_token=tokens.get("bos_token"),
        bos_token_id=bos,
        eos_token=tokens.get("eos_token"),
        eos_token_id=ids.get("eos_token"),
        pad_token=tokens.get("pad_token"),
        pad_token_id=ids.get("pad_token"),
        special_ids=frozenset(i for i, token in added.items() if token.special),
        add_bos=bos is not None and encoded[:1] == [bos] and plain[:1] != [bos],
    )


def load_tokenizer(directory: Path) -> TokenizerAssets:
    """Load tokenizer.json and the files around it.

    Raises CheckpointError that names the file at fault.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(_why_no_tokenizer(directory))
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise CheckpointError(f"{path}: not a usable tokenizer: {error}") from None
    config = _read_optional(directory / "tokenizer_config.json")
    special = {**_read_optional(directory / "special_tokens_map.json"), **config}
    tokens = {
        name: _token_text(special.get(name), directory, name)
        for name in ("bos_token", "eos_token", "pad_token")
    }
    templates = _templates(directory, config)
    assets = assemble(tokenizer, tokens, templates.pop("default", None), templates)
    wanted = config.get("add_bos_token")
    if isinstance(wanted, bool) and wanted != assets.add_bos:
        _log.warning(
            "%s says add_bos_token = %s, but tokenizer.json %s a BOS token; tokenizer.json is "
            "followed",
            directory / "tokenizer_config.json",
            wanted,
            "adds" if assets.add_bos else "does not add",
        )
    return assets


def _why_no_tokenizer(directory: Path) -> str:
    if (directory / "tokenizer.model").is_file():
        return (
            f"{directory}: has tokenizer.model but no tokenizer.json; only tokenizer.json is "
            "read. Convert it once with a fast tokenizer's save_pretrained, or use a copy of the "
            "model that has tokenizer.json"
        )
    return f"{directory}: no tokenizer.json"


def _read_optional(path: Path) -> dict[str, Any]:
    return load_json_object(path) if path.is_file() else {}


def _token_text(value: object, directory: Path, name: str) -> str | None:
    if isinstance(value, dict):  # a serialised AddedToken
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise CheckpointError(
        f"{directory / 'tokenizer_config.json'}: field {name!r} is {describe(value)}; a string or "
        "an object with 'content' is needed"
    )


def _templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return templates by name.

    A .jinja file wins over chat_template.json, that over tokenizer_config.json.
    """
    where = directory / "tokenizer_config.json"
    value: object = config.get("chat_template")
    if (directory / "chat_template.json").is_file():
        where = directory / "chat_template.json"
        value = load_json_object(where).get("chat_template")
    if isinstance(value, dict):
        templates = {name: Fields(value, f"{where}, chat_template").text(name) for name in value}
    elif isinstance(value, list):
        templates = dict(_named_template(item, where) for item in value)
    elif isinstance(value, str):
        templates = {"default": value}
    elif value is None:
        templates = {}
    else:
        raise CheckpointError(
            f"{where}: field 'chat_template' is {describe(value)}; a string or a list is needed"
        )
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = load_text(path)
    if (directory / "chat_template.jinja").is_file():
        templates["default"] = load_text(directory / "chat_template.jinja")
    return templates


def _named_template(item: object, where: Path) -> tuple[str, str]:
    if not isinstance(item, dict):
        raise CheckpointError(
            f"{where}: 'chat_template' holds {describe(item)}; an object with 'name' and "
            "'template' is needed"
        )
    fields = Fields(item, f"{where}, chat_template")
    return fields.text("name"), fields.text("template")
