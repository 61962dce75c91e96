"""From generated tokens to text, one token at a time.

A character appears once all of its bytes are there; until then nothing does. Each token costs the
same, however long the text has become. The joined output equals the tokenizer's own decoding of the
whole sequence, with one exception that streaming cannot have: where byte tokens do not form UTF-8,
the library's ByteFallback decoder also spoils valid characters before the fault, which have been
shown by then; here they stay.
"""

import codecs
from collections.abc import Sequence

from dualpace.gateway.text.token_text import TokenText

_MAX_UTF8_BYTES = 4


class Detokenizer:
    """Text of one generation, in the context of its prompt."""

    __slots__ = ("_clean", "_decoder", "_drop", "_hidden", "_strip", "_table", "_texts")

    def __init__(
        self,
        table: TokenText,
        prompt: Sequence[int],
        *,
        show_special: bool = False,
        visible_ids: frozenset[int] = frozenset(),
    ) -> None:
        """visible_ids: special tokens that show even where the others do not."""
        self._table = table
        self._hidden = frozenset[int]() if show_special else table.special_ids - visible_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(table.decode_errors)
        tail = self._last_shown(prompt)
        self._drop = b"" if tail else table.first_token_drop.encode()
        self._strip = "" if any(map(table.piece, tail)) else table.leading_strip
        # A prompt of token ids may end inside a character: its bytes are kept, its text is not
        # ours.
        self._decoder.decode(b"".join(table.piece(t) for t in tail))
        self._texts = table.seen_texts
        self._clean = self._is_clean()

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, often its own, sometimes none."""
        if self._clean:
            text = self._texts.get(token_id)
            if text is not None:
                return text
        was_clean = self._clean
        text = self._decoded(token_id)
        self._clean = self._is_clean()
        if was_clean and self._clean and token_id not in self._table.special_ids:
            self._texts[token_id] = text
        return text

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that never got complete."""
        return self._without_leading_strip(self._decoder.decode(b"", final=True))

    def _is_clean(self) -> bool:
        """Whether the text of the next token depends on that token alone."""
        return not (self._drop or self._strip or self._decoder.getstate()[0])

    def _decoded(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        piece = self._table.piece(token_id)
        if self._drop:
            piece = piece.replace(self._drop, b"")
            self._drop = b""
        return self._without_leading_strip(self._decoder.decode(piece))

    def _without_leading_strip(self, text: str) -> str:
        if self._strip and text:
            text = text.removeprefix(self._strip)
            self._strip = ""
        return text

    def _last_shown(self, prompt: Sequence[int]) -> list[int]:
        """Return the prompt's last shown tokens, as many as a character can have bytes."""
        tail: list[int] = []
        for token_id in reversed(prompt):
            if token_id not in self._hidden:
                tail.append(token_id)
                if len(tail) == _MAX_UTF8_BYTES:
                    break
        return tail[::-1]


def text_offsets(token_ids: Sequence[int], table: TokenText) -> list[int]:
    """Return the offset in characters at which each token's text begins in the whole text."""
    detokenizer = Detokenizer(table, ())
    offsets: list[int] = []
    length = 0
    for token_id in token_ids:
        offsets.append(length)
        length += len(detokenizer.push(token_id))
    return offsets
