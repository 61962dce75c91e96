"""Tokenizers from a GGUF header: GPT-2-style BPE, and Llama's SentencePiece BPE.

A GGUF file has vocabulary and merges, but names the way in which text is split before BPE only by
a word, the `pre` field. The splits here are those of the models' own tokenizer.json files. Unknown
words are refused: a wrong split gives plausible text and worse answers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from dualpace.checkpoint.fields import Fields
from dualpace.checkpoint.sentencepiece import merges_from_scores
from dualpace.checkpoint.tokenizer import TokenizerAssets, assemble
from dualpace.core.errors import CheckpointError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PHI3_SWALLOWING = frozenset({"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"})
"""Phi-3's turn tokens take the white space behind them along, which its template relies on."""


def gguf_tokenizer(values: Mapping[str, Any], where: str) -> TokenizerAssets:
    """Build the tokenizer that a GGUF header describes.

    Raises CheckpointError for models and splits not known.
    """
    fields = Fields(values, where)
    tokens = fields.items("tokenizer.ggml.tokens", str)
    if not tokens:
        raise CheckpointError(f"{where}: the file has no tokenizer (tokenizer.ggml.tokens)")
    types = fields.items("tokenizer.ggml.token_type", int, len(tokens)) or [_NORMAL] * len(tokens)
    model = fields.text("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    if model not in builders:
        raise CheckpointError(
            f"{where}: tokenizer model {model!r} is not supported; supported are "
            f"{', '.join(builders)}"
        )
    tokenizer = builders[model](fields, tokens, types)
    phi3 = model == "llama" and fields.text("general.architecture", "") == "phi3"
    _add_tokens(tokenizer, tokens, types, _PHI3_SWALLOWING if phi3 else frozenset())
    _add_template(tokenizer, fields, tokens)
    names = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "pad_token": "padding_token_id",
    }
    texts = {
        name: _token_text(fields, f"tokenizer.ggml.{field}", tokens)
        for name, field in names.items()
    }
    named = {
        name: fields.text(f"tokenizer.chat_template.{name}")
        for name in fields.items("tokenizer.chat_templates", str) or []
    }
    key = "tokenizer.chat_template"
    return assemble(tokenizer, texts, fields.text(key) if key in fields else None, named)


def _byte_level_bpe(fields: Fields, tokens: list[str], _types: list[int]) -> Tokenizer:
    pre = fields.text("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        raise CheckpointError(
            f"{fields.where}: pre-tokenizer {pre!r} is not supported; supported are "
            f"{', '.join(_SPLITS)}"
        )
    lines = fields.items("tokenizer.ggml.merges", str)
    if lines is None:
        raise CheckpointError(f"{fields.where}: the file has no merges (tokenizer.ggml.merges)")
    merges = [_pair(line, fields.where) for line in lines]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    bpe = _bpe(fields.where, vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS_FIRST)
    tokenizer = Tokenizer(bpe)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _SPLITS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(line: str, where: str) -> tuple[str, str]:
    left, space, right = line.partition(" ")
    if not (left and space and right):
        raise CheckpointError(f"{where}: merge {line!r} is not two tokens separated by a space")
    return left, right


def _bpe(
    where: str, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> models.BPE:
    try:
        return models.BPE(vocabulary, merges, **options)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise CheckpointError(
            f"{where}: vocabulary and merges do not fit together: {error}"
        ) from None


def _gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_split()])


def _regex_split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


_SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _smollm_split,
    "llama-bpe": lambda: _regex_split(_LLAMA3_SPLIT),
    "qwen2": lambda: _regex_split(_QWEN2_SPLIT),
    "gpt-2": _gpt2_split,
    "default": _gpt2_split,
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe"})
"""Splits whose words are looked up whole before merges are tried."""


def _sentencepiece_bpe(fields: Fields, tokens: list[str], types: list[int]) -> Tokenizer:
    """SentencePiece BPE with byte fallback.

    Spaces are U+2581, one is put before each stretch of plain text.
    """
    scores = fields.numbers("tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise CheckpointError(f"{fields.where}: the file has no scores (tokenizer.ggml.scores)")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    mergeable = {t: s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == _NORMAL}
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    bpe = _bpe(
        fields.where,
        vocabulary,
        merges_from_scores(mergeable),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    prefix = fields.boolean("tokenizer.ggml.add_space_prefix", True)
    escape = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("\u2581"), escape]) if prefix else escape
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _add_tokens(
    tokenizer: Tokenizer, tokens: list[str], types: list[int], swallowing: frozenset[str]
) -> None:
    """Register control and user-defined tokens, which are found in text before it is split."""
    special = [
        AddedToken(token, special=True, normalized=False, rstrip=token in swallowing)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _UNKNOWN)
    ]
    plain = [
        AddedToken(token, special=False, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == _USER_DEFINED
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_template(tokenizer: Tokenizer, fields: Fields, tokens: list[str]) -> None:
    """Let encoding with special tokens add BOS and EOS as the file says, or as its kind does."""
    bos_by_default = (
        fields.text("tokenizer.ggml.model") == "llama"
        or fields.text("tokenizer.ggml.pre", "default") in _WHOLE_WORDS_FIRST
    )
    parts, special = ["$A"], []
    bos, eos = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"
    if fields.boolean("tokenizer.ggml.add_bos_token", bos_by_default) and bos in fields:
        text = _token_text(fields, bos, tokens)
        parts.insert(0, str(text))
        special.append((str(text), fields.integer(bos, minimum=0)))
    if fields.boolean("tokenizer.ggml.add_eos_token", False) and eos in fields:
        text = _token_text(fields, eos, tokens)
        parts.append(str(text))
        special.append((str(text), fields.integer(eos, minimum=0)))
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=parts, special_tokens=special
        )


def _token_text(fields: Fields, name: str, tokens: list[str]) -> str | None:
    if name not in fields:
        return None
    index = fields.integer(name, minimum=0)
    if index >= len(tokens):
        fields.fail(name, index, f"an id below the vocabulary's {len(tokens)}")
    return tokens[index]
