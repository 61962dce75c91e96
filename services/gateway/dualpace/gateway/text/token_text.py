"""What each token of a vocabulary adds to the text, as bytes, read off the tokenizer's own decoder.

Decoders of language models are nearly always concatenations: ByteLevel, whose tokens are bytes
under another name, and the SentencePiece family, whose tokens are text with "▁" for a space and
`<0xE2>` for a single byte. For these the text of a sequence is the concatenated bytes of its
tokens, apart from a rule about its very beginning. So a token's contribution is looked up, whatever
came before, and streaming needs no second decoding. Any other decoder is refused by name.
"""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from dualpace.core.errors import CheckpointError

ONE_PER_BYTE = "dualpace.one-replacement-per-byte"
"""Error handler: each undecodable byte becomes one U+FFFD, as the ByteFallback decoder does."""


def _one_replacement_per_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\N{REPLACEMENT CHARACTER}" * (error.end - error.start), error.end


codecs.register_error(ONE_PER_BYTE, _one_replacement_per_byte)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """The text side of a vocabulary."""

    pieces: Sequence[bytes] = field(repr=False)
    """Bytes of each token by id, special tokens included; b"" for ids that the tokenizer lacks."""
    special_ids: frozenset[int]
    """Tokens that are not shown."""
    decode_errors: str
    """How bytes that are not UTF-8 are shown: a codecs error handler."""
    leading_strip: str = ""
    """One of these is dropped where the whole text, prompt included, begins with it."""
    first_token_drop: str = ""
    """Dropped wherever it occurs in the very first token of the whole text."""
    seen_texts: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Texts of tokens that are complete characters; detokenizers fill it in as they meet them."""

    def piece(self, token_id: int) -> bytes:
        """Return a token's bytes, special or not."""
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def label(self, token_id: int) -> str:
        """Return a token on its own as text, for listings; half characters show as U+FFFD."""
        return self.piece(token_id).decode("utf-8", self.decode_errors)

    def text(self, token_ids: Iterable[int]) -> str:
        """Return the text of a whole sequence, special tokens left out."""
        shown = [t for t in token_ids if t not in self.special_ids]
        pieces = [self.piece(t) for t in shown]
        if pieces and self.first_token_drop:
            pieces[0] = pieces[0].replace(self.first_token_drop.encode(), b"")
        text = b"".join(pieces).decode("utf-8", self.decode_errors)
        return text.removeprefix(self.leading_strip) if self.leading_strip else text


def read_token_text(tokenizer: Tokenizer) -> TokenText:
    """Build the table for a tokenizer. Raises CheckpointError for an unsupported decoder."""
    if tokenizer.decoder is None:
        raise CheckpointError(
            "the tokenizer has no decoder; ByteLevel and SentencePiece kinds are supported"
        )
    steps = _steps(json.loads(tokenizer.decoder.__getstate__()))
    added = tokenizer.get_added_tokens_decoder()
    size = max(tokenizer.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
    tokens = [tokenizer.id_to_token(token_id) or "" for token_id in range(size)]
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    if [step["type"] for step in steps] == ["ByteLevel"]:
        pieces = [_byte_level_piece(token) for token in tokens]
        return TokenText(pieces=pieces, special_ids=special_ids, decode_errors="replace")
    return _read_sentencepiece(steps, tokens, special_ids)


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _byte_characters() -> dict[str, int]:
    """Map the characters of ByteLevel tokens to bytes.

    GPT-2's table: printable Latin-1 stands for itself, the other bytes, in order, are U+0100
    onwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()


def _byte_level_piece(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:  # an added token, written as plain text
        return token.encode()


def _read_sentencepiece(
    steps: Sequence[Mapping[str, Any]], tokens: Sequence[str], special_ids: frozenset[int]
) -> TokenText:
    """Apply the decoder's steps to every token at once; steps after Fuse concern the whole text."""
    texts = list(tokens)
    raw_bytes: dict[int, bytes] = {}
    leading_strip = first_token_drop = ""
    fused = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content} if (
                not fused and not raw_bytes
            ):
                texts = [text.replace(pattern, content) for text in texts]
            case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme} if (
                not fused and not raw_bytes
            ):
                texts = [text.replace(mark, " ") for text in texts]
                first_token_drop = "" if scheme == "never" else " "
            case {"type": "ByteFallback"} if not fused:
                raw_bytes = {
                    i: piece for i, text in enumerate(texts) if (piece := _fallback_byte(text))
                }
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": content, "start": 0 | 1 as start, "stop": 0} if fused:
                leading_strip = content * start
            case _:
                raise CheckpointError(
                    f"the tokenizer's decoder {[s['type'] for s in steps]} is not supported (at "
                    f"{step['type']}); ByteLevel and SentencePiece kinds are"
                )
    pieces = [raw_bytes.get(i) or text.encode() for i, text in enumerate(texts)]
    return TokenText(
        pieces=pieces,
        special_ids=special_ids,
        decode_errors=ONE_PER_BYTE if raw_bytes else "replace",
        leading_strip=leading_strip,
        first_token_drop=first_token_drop,
    )


def _fallback_byte(text: str) -> bytes | None:
    """Return the byte that a token such as <0x0A> stands for, or None."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            return None
    return None
