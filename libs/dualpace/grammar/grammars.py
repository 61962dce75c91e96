"""Compiled grammars by their text, the most recently used ones kept; compiling has a thread.

`prepare` is for callers that must not wait: it compiles in the thread and then tells them.
`matcher` is for those that need one now: what was prepared is there at once.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLTokenizer

from dualpace.core.errors import GrammarError
from dualpace.grammar.compiled import CompiledGrammar, GrammarMatcher
from dualpace.grammar.vocabulary import VocabularySource

log = logging.getLogger(__name__)

_KEPT = 64
_KEPT_CHARACTERS = 4 << 20
"""Of the texts together; a compiled grammar takes a multiple of its text."""


class Grammars:
    """The grammars of one model. Methods may be called from any thread. Close it when done."""

    def __init__(self, load_vocabulary: VocabularySource) -> None:
        self._load_vocabulary = load_vocabulary
        self._vocabulary: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._compiled: OrderedDict[str, CompiledGrammar | GrammarError] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def prepare(self, grammar: str, done: Callable[[], None]) -> None:
        """Compile in the thread, then call `done` there; the outcome is told by `matcher`."""
        self._thread.submit(self._prepare, grammar, done)

    def ready(self, grammar: str) -> bool:
        """Whether `matcher` would answer without compiling."""
        with self._lock:
            return grammar in self._compiled

    def matcher(self, grammar: str) -> GrammarMatcher:
        """Return a matcher at the start of a grammar. Raises GrammarError."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
        found = found or self._compile(grammar)
        if isinstance(found, GrammarError):
            raise found
        return found.matcher()

    def close(self) -> None:
        """Stop the thread; what waits for it is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, grammar: str, done: Callable[[], None]) -> None:
        try:
            if not self.ready(grammar):
                self._compile(grammar)
        except Exception:
            log.exception("a grammar could not be compiled")  # `matcher` will tell its request
        finally:
            done()

    def _compile(self, grammar: str) -> CompiledGrammar | GrammarError:
        outcome: CompiledGrammar | GrammarError
        try:
            outcome = CompiledGrammar(self._loaded(), grammar)
        except GrammarError as error:
            outcome = error
        with self._lock:
            self._compiled[grammar] = outcome
            while len(self._compiled) > 1 and self._too_many():
                self._compiled.popitem(last=False)
        return outcome

    def _loaded(self) -> LLTokenizer:
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary()
            return self._vocabulary

    def _too_many(self) -> bool:
        return len(self._compiled) > _KEPT or sum(map(len, self._compiled)) > _KEPT_CHARACTERS
