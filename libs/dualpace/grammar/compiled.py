"""One grammar over one vocabulary, and matchers that walk through it.

llguidance never raises for a bad grammar or token; its matchers remember an error instead. Here
that becomes a GrammarError. Its limits (fuel of the lexer, items of the parser, states) bound what
compiling and each step may cost, so that no grammar can hold up an engine.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from dualpace.core.errors import GrammarError

_MAX_MESSAGE = 300


class GrammarMatcher:
    """How far one sequence is in a grammar. Implements sampling's Matcher."""

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self._num_words = num_words

    def consume(self, token_ids: Sequence[int]) -> None:
        """Go on by generated tokens. Raises GrammarError."""
        if not self._matcher.consume_tokens([int(token_id) for token_id in token_ids]):
            raise _error(self._matcher)

    def allowed(self) -> npt.NDArray[np.int32]:
        """Return which tokens may follow, a bit each, 32 a word, low bits first.

        Raises GrammarError.
        """
        words = np.empty(self._num_words, np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise _error(self._matcher)
        return words

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.is_accepting()


class CompiledGrammar:
    """A grammar that compiled; makes matchers that start at its beginning, from any thread."""

    def __init__(self, tokenizer: LLTokenizer, grammar: str) -> None:
        """Compile. Raises GrammarError. Drops the interpreter lock while it works."""
        self._matcher = LLMatcher(tokenizer, grammar, log_level=0)
        self._num_words = -(-tokenizer.vocab_size // 32)
        if self._matcher.is_error():
            raise _error(self._matcher)

    def matcher(self) -> GrammarMatcher:
        """Return a matcher at the start."""
        return GrammarMatcher(self._matcher.deep_copy(), self._num_words)


def _error(matcher: LLMatcher) -> GrammarError:
    # What follows the first line shows the parser's state, generated text included.
    lines = matcher.get_error().strip().splitlines() or ["unknown"]
    return GrammarError(f"the grammar cannot be used: {lines[0][:_MAX_MESSAGE]}")
