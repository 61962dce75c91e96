"""Tokenizers of Hugging Face directories, and the files around them."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from dualpace.checkpoint import fetch_demo_model, open_checkpoint
from dualpace.checkpoint.tokenizer import load_tokenizer
from dualpace.core.errors import CheckpointError
from dualpace.testing.gold import smollm2_prompts, tiny_model, tiny_model_names, tiny_prompts


def tokenizer_json(*, bos: bool = False, truncate: bool = False) -> str:
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2, "a": 3, "b": 4, "ab": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    if truncate:
        tokenizer.enable_truncation(2)
        tokenizer.enable_padding(length=8, pad_id=2, pad_token="<pad>")
    text: str = tokenizer.to_str()
    return text


MakeDirectory = Any


def test_special_tokens_come_with_their_ids(make_directory: MakeDirectory) -> None:
    directory = make_directory(
        tokenizer__json=tokenizer_json(),
        tokenizer_config__json={
            "bos_token": "<s>",
            "eos_token": {"content": "</s>", "special": True},
            "pad_token": None,
        },
    )
    assets = load_tokenizer(directory)
    assert (assets.bos_token, assets.bos_token_id) == ("<s>", 0)
    assert (assets.eos_token, assets.eos_token_id) == ("</s>", 1)
    assert (assets.pad_token, assets.pad_token_id) == (None, None)
    assert assets.special_ids == {0, 1, 2}
    assert assets.chat_template is None


def test_the_special_tokens_map_serves_older_directories(make_directory: MakeDirectory) -> None:
    directory = make_directory(
        tokenizer__json=tokenizer_json(), special_tokens_map__json={"eos_token": "</s>"}
    )
    assert load_tokenizer(directory).eos_token_id == 1


@pytest.mark.parametrize("bos", [True, False])
def test_add_bos_is_what_the_tokenizer_does(bos: bool, make_directory: MakeDirectory) -> None:
    directory = make_directory(
        tokenizer__json=tokenizer_json(bos=bos), tokenizer_config__json={"bos_token": "<s>"}
    )
    assets = load_tokenizer(directory)
    assert assets.add_bos is bos
    assert assets.tokenizer.encode("ab").ids == ([0, 5] if bos else [5])


def test_a_contradicting_add_bos_token_is_logged(
    make_directory: MakeDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory = make_directory(
        tokenizer__json=tokenizer_json(bos=False),
        tokenizer_config__json={"bos_token": "<s>", "add_bos_token": True},
    )
    assert not load_tokenizer(directory).add_bos
    assert "does not add a BOS token; tokenizer.json is followed" in caplog.text


def test_truncation_and_padding_are_off(make_directory: MakeDirectory) -> None:
    directory = make_directory(tokenizer__json=tokenizer_json(truncate=True))
    assert load_tokenizer(directory).tokenizer.encode("a b a b").ids == [3, 4, 3, 4]


def test_the_class_name_is_ignored(make_directory: MakeDirectory) -> None:
    directory = make_directory(
        tokenizer__json=tokenizer_json(),
        tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer"},
    )
    assert load_tokenizer(directory).tokenizer.encode("ab").ids == [5]


@pytest.mark.parametrize(
    ("files", "default", "named"),
    [
        ({"tokenizer_config__json": {"chat_template": "T"}}, "T", {}),
        (
            {
                "tokenizer_config__json": {
                    "chat_template": [
                        {"name": "default", "template": "D"},
                        {"name": "tool_use", "template": "U"},
                    ]
                }
            },
            "D",
            {"tool_use": "U"},
        ),
        ({"chat_template__json": {"chat_template": "J"}}, "J", {}),
        (
            {"chat_template__jinja": "X", "tokenizer_config__json": {"chat_template": "T"}},
            "X",
            {},
        ),
        (
            {"chat_template__json": {"chat_template": {"default": "D", "rag": "R"}}},
            "D",
            {"rag": "R"},
        ),
        ({}, None, {}),
    ],
)
def test_chat_templates_are_found_wherever_they_are(
    files: dict[str, Any], default: str | None, named: dict[str, str], make_directory: MakeDirectory
) -> None:
    assets = load_tokenizer(make_directory(tokenizer__json=tokenizer_json(), **files))
    assert assets.chat_template == default
    assert assets.named_templates == named


def test_additional_templates_are_found(make_directory: MakeDirectory) -> None:
    directory = make_directory(tokenizer__json=tokenizer_json(), chat_template__jinja="D")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "rag.jinja").write_text("R")
    assets = load_tokenizer(directory)
    assert (assets.chat_template, assets.named_templates) == ("D", {"rag": "R"})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer.json"),
        ({"tokenizer__model": b"x"}, "has tokenizer.model but no tokenizer.json; only"),
        ({"tokenizer__json": "{}"}, "tokenizer.json: not a usable tokenizer"),
        ({"tokenizer__json": "nonsense"}, "tokenizer.json: not a usable tokenizer"),
        (
            {"tokenizer__json": tokenizer_json(), "tokenizer_config__json": "["},
            "tokenizer_config.json: not valid JSON",
        ),
        (
            {"tokenizer__json": tokenizer_json(), "tokenizer_config__json": {"eos_token": 3}},
            r"'eos_token' is 3 \(a number\)",
        ),
        (
            {"tokenizer__json": tokenizer_json(), "tokenizer_config__json": {"chat_template": 3}},
            r"'chat_template' is 3",
        ),
        (
            {
                "tokenizer__json": tokenizer_json(),
                "tokenizer_config__json": {"chat_template": [{"name": "x"}]},
            },
            "'template' is missing",
        ),
        (
            {"tokenizer__json": tokenizer_json(), "chat_template__jinja": b"\xff\xfe"},
            "chat_template.jinja: not UTF-8 text",
        ),
    ],
)
def test_errors_name_the_file(
    files: dict[str, Any], message: str, make_directory: MakeDirectory
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(make_directory(**files))


@pytest.mark.parametrize("prompt", smollm2_prompts(), ids=lambda p: p.name)
def test_the_demo_tokenizer_gives_the_reference_ids(prompt: Any) -> None:
    assets = open_checkpoint(fetch_demo_model()).tokenizer()
    encoded = assets.tokenizer.encode(prompt.text, add_special_tokens=False)
    assert tuple(encoded.ids) == prompt.token_ids


def test_a_saved_tokenizer_gives_the_same_ids() -> None:
    assets = open_checkpoint(tiny_model(tiny_model_names()[0])).tokenizer()
    for prompt in tiny_prompts(tiny_model_names()[0]):
        ids = assets.tokenizer.encode(prompt.text, add_special_tokens=False).ids
        assert tuple(ids) == prompt.token_ids
    assert assets.chat_template is not None
    assert "<|im_start|>" in assets.chat_template


def test_errors_do_not_hide_the_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
