"""Tokenizers that a GGUF header describes."""

from typing import Any

import pytest

from dualpace.checkpoint import TokenizerAssets
from dualpace.checkpoint.gguf_tokenizer import gguf_tokenizer
from dualpace.core.errors import CheckpointError

CONTROL, USER_DEFINED, BYTE = 3, 4, 6


def byte_level(pre: str | None = "smollm", **more: Any) -> dict[str, Any]:
    """A header with the 256 byte symbols of GPT-2, two merges and two special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    symbols = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    tokens = ["<|begin|>", "<|end|>", *symbols, "he", "Ġhe"]
    header = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [CONTROL, CONTROL] + [1] * (len(tokens) - 2),
        "merges": ["h e", "Ġ he"],
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | ({} if pre is None else {"pre": pre})
    return _header(header, more)


def sentencepiece(**more: Any) -> dict[str, Any]:
    """A header with all byte tokens and a few pieces."""
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    pieces = ["\u2581", "h", "e", "he", "\u2581he"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *pieces, "<|user|>"]
    header = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0] + [-1000.0],
        "token_type": [2, CONTROL, CONTROL] + [BYTE] * 256 + [1] * 5 + [USER_DEFINED],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _header(header, more)


def _header(header: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    values = {f"tokenizer.ggml.{key}": value for key, value in (header | more).items()}
    return {key: value for key, value in values.items() if value is not None}


def build(header: dict[str, Any]) -> TokenizerAssets:
    return gguf_tokenizer(header, "model.gguf")


def words(assets: TokenizerAssets, text: str) -> list[str]:
    """The pieces that merges never cross."""
    pre_tokenizer = assets.tokenizer.pre_tokenizer
    assert pre_tokenizer is not None
    return [text[begin:end] for _, (begin, end) in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "a  12 b", ["a", "  ", "1", "2", " b"]),
        ("gpt-2", "a  12 b", ["a", " ", " 12", " b"]),
        ("default", "a  12 b", ["a", " ", " 12", " b"]),
        ("qwen2", "a  12 b", ["a", " ", " ", "1", "2", " b"]),
        ("llama-bpe", "a  12345 b", ["a", " ", " ", "123", "45", " b"]),
        ("smollm", "it's\n\n1.", ["it", "'s", "\n\n", "1", "."]),
        ("llama-bpe", "IT'S\n\n1.", ["IT", "'S", "\n\n", "1", "."]),
        ("qwen2", "(x);\n y", ["(x", ");\n", " y"]),
        ("gpt-2", "(x);\n y", ["(", "x", ");", "\n", " y"]),
    ],
)
def test_text_is_split_as_the_name_says(pre: str, text: str, expected: list[str]) -> None:
    assert words(build(byte_level(pre)), text) == expected


def test_a_header_without_a_name_splits_like_gpt2() -> None:
    assert words(build(byte_level(None)), "a  12") == ["a", " ", " 12"]


def test_bytes_merge_and_come_back() -> None:
    assets = build(byte_level())
    text = " he hé 😀\n\x00\u200d end"
    encoded = assets.tokenizer.encode(text, add_special_tokens=True)
    assert encoded.tokens[0] == "Ġhe"
    assert assets.tokenizer.decode(encoded.ids) == text
    assert not assets.add_bos


def test_qwen2_composes_characters() -> None:
    decomposed, composed = "e\u0301", "\u00e9"
    qwen, gpt = build(byte_level("qwen2")).tokenizer, build(byte_level("gpt-2")).tokenizer
    assert qwen.encode(decomposed).ids == qwen.encode(composed).ids
    assert gpt.encode(decomposed).ids != gpt.encode(composed).ids


def test_llama_bpe_takes_whole_words_before_merges() -> None:
    tokens = byte_level()["tokenizer.ggml.tokens"]
    with_word = [*tokens, "hehe"]
    types = [CONTROL, CONTROL] + [1] * (len(with_word) - 2)
    for pre, expected in (("llama-bpe", ["hehe"]), ("gpt-2", ["he", "he"])):
        assets = build(byte_level(pre, tokens=with_word, token_type=types))
        assert assets.tokenizer.encode("hehe", add_special_tokens=False).tokens == expected


def test_special_tokens_are_found_in_text_and_not_shown() -> None:
    assets = build(byte_level())
    ids = assets.tokenizer.encode("he<|end|>he", add_special_tokens=False).ids
    assert ids[1] == 1
    assert assets.tokenizer.decode(ids, skip_special_tokens=True) == "hehe"
    assert assets.special_ids == {0, 1}
    assert (assets.bos_token, assets.eos_token, assets.pad_token) == ("<|begin|>", "<|end|>", None)
    assert (assets.bos_token_id, assets.eos_token_id, assets.pad_token_id) == (0, 1, None)


@pytest.mark.parametrize(
    ("header", "added"),
    [
        (byte_level("smollm"), False),
        (byte_level("smollm", add_bos_token=True), True),
        (byte_level("llama-bpe"), True),
        (byte_level("llama-bpe", add_bos_token=False), False),
        (byte_level("llama-bpe", bos_token_id=None), False),
        (sentencepiece(), True),
        (sentencepiece(add_bos_token=False), False),
    ],
)
def test_bos_is_added_as_told_or_as_usual(header: dict[str, Any], added: bool) -> None:
    assets = build(header)
    assert assets.add_bos is added
    with_special = assets.tokenizer.encode("he", add_special_tokens=True).ids
    without = assets.tokenizer.encode("he", add_special_tokens=False).ids
    bos = [assets.bos_token_id] if added else []
    assert with_special == bos + without


def test_eos_is_added_if_told() -> None:
    assets = build(byte_level(add_eos_token=True))
    assert assets.tokenizer.encode("he").tokens == ["he", "<|end|>"]


def test_sentencepiece_marks_spaces_and_falls_back_to_bytes() -> None:
    tokenizer = build(sentencepiece()).tokenizer
    encoded = tokenizer.encode("he  hé", add_special_tokens=False)
    expected = ["\u2581he", "\u2581", "\u2581", "h", "<0xC3>", "<0xA9>"]
    assert encoded.tokens == expected
    assert tokenizer.decode(encoded.ids) == "he  hé"


def test_sentencepiece_puts_a_space_behind_special_tokens_too() -> None:
    tokenizer = build(sentencepiece()).tokenizer
    encoded = tokenizer.encode("<|user|>he", add_special_tokens=False)
    assert encoded.tokens == ["<|user|>", "\u2581he"]


@pytest.mark.parametrize(("architecture", "swallowed"), [("phi3", True), ("llama", False)])
def test_turn_tokens_of_phi3_swallow_the_line_break(architecture: str, swallowed: bool) -> None:
    header = sentencepiece() | {"general.architecture": architecture}
    header["tokenizer.ggml.token_type"][-1] = CONTROL
    tokenizer = build(header).tokenizer
    ids = tokenizer.encode("<|user|>\nhe", add_special_tokens=False).ids
    tokens = [tokenizer.id_to_token(i) for i in ids]
    expected = ["\u2581he"] if swallowed else ["\u2581", "<0x0A>", "he"]
    assert tokens == ["<|user|>", *expected]


def test_sentencepiece_without_a_space_prefix() -> None:
    tokenizer = build(sentencepiece(add_space_prefix=False)).tokenizer
    encoded = tokenizer.encode("he he", add_special_tokens=False)
    assert encoded.tokens == ["he", "\u2581he"]
    assert tokenizer.decode(encoded.ids) == "he he"


def test_templates_are_exposed() -> None:
    header = byte_level() | {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    assets = build(header)
    assert assets.chat_template == "{{ messages }}"
    assert assets.named_templates == {"tool_use": "{{ tools }}"}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({}, r"no tokenizer \(tokenizer\.ggml\.tokens\)"),
        (byte_level("deepseek-llm"), r"'deepseek-llm' is not supported; supported are smollm, "),
        (byte_level(model="bert"), r"tokenizer model 'bert' is not supported.*gpt2, llama"),
        (byte_level(merges=None), "no merges"),
        (byte_level(merges=["he"]), r"merge 'he' is not two tokens"),
        (byte_level(merges=["x yz"]), "do not fit together"),
        (byte_level(token_type=[1]), r"'tokenizer\.ggml\.token_type'.*a list of 260"),
        (byte_level(bos_token_id=9999), r"bos_token_id' is 9999 .*below the vocabulary's 260"),
        (sentencepiece(scores=None), "no scores"),
        (sentencepiece(scores=[1.0]), r"scores'.*a list of 265"),
    ],
)
def test_errors_name_what_is_wrong(header: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.gguf.*{message}"):
        build(header)
