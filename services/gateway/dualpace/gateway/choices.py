"""The state of one choice while it is generated: tokens in, text deltas out.

It joins detokenizer and stop strings, and counts. It knows nothing of HTTP, JSON or other choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import Engine, FinishReason
from dualpace.gateway.engines.backend import GeneratedToken, GenerationEnd, ScoredPrompt
from dualpace.gateway.errors import invalid, server_error
from dualpace.gateway.planning import ChoicePlan
from dualpace.gateway.text.detokenizer import Detokenizer
from dualpace.gateway.text.stop_strings import StopMatcher, StopStrings
from dualpace.gateway.text.token_text import TokenText
from dualpace.gateway.tools.calls import CallParser, ToolCall


class ChosenToken(NamedTuple):
    """A generated token, and the offset in characters at which its text begins."""

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None
    engine: Engine


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended, in the words of the API."""

    reason: str
    """stop or length."""
    stop_reason: str | int | None = None
    """The stop string, or the client's stop token, that ended it."""


@dataclass(frozen=True, slots=True)
class IndexedCall:
    """A tool call and its place among those of its choice."""

    index: int
    call: ToolCall


class Delta(NamedTuple):
    """What became visible: text, and the tokens since the delta before."""

    text: str
    tokens: tuple[ChosenToken, ...]
    calls: tuple[IndexedCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """Which text a request's answer shows, and what ends it."""

    stop_strings: tuple[str, ...] = ()
    client_stop_token_ids: frozenset[int] = frozenset()
    """Those that are reported as stop_reason."""
    include_stop: bool = False
    """The stop string, or the stop token's text, belongs to the answer."""
    show_special: bool = False
    visible_ids: frozenset[int] = frozenset()
    """Special tokens that show all the same."""
    call_parser: Callable[[], CallParser] | None = None
    """Reads tool calls out of the text; None: all of it is content."""
    max_calls: int | None = None
    """Further calls are dropped: the client wants no parallel ones."""
    min_tokens: int = 0
    """Stop strings count only in text after so many tokens."""


@dataclass(slots=True)
class Choice:
    """One choice of the answer. Feed it its events in order; ask `finish` after each."""

    plan: ChoicePlan
    options: TextOptions
    detokenizer: Detokenizer
    stops: StopMatcher | None
    call_parser: CallParser | None
    scores: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens from the second on, if they were asked for."""
    waited_s: float | None = None
    """Before the engines began with it, once they said so."""
    lists_tokens: bool = True
    """Whether deltas carry their tokens, and not the text alone."""
    tokens_at_once: bool = False
    """Whether each token is told as it comes, even where its text is held back."""
    finish: Finish | None = None
    num_tokens: int = 0
    tokens_by_engine: list[int] = field(default_factory=lambda: [0] * len(Engine))
    num_assisted: int = 0
    """Of the cpu-engine's tokens, those whose dense stages the gpu-engine computed."""
    num_calls: int = 0
    _pending: list[ChosenToken] = field(default_factory=list)
    _num_characters: int = 0
    _last_token_id: int | None = None
    _silent_ends: Sequence[int] = ()
    """Tokens that end the text and do not show."""

    def __post_init__(self) -> None:
        """Look up once what every token needs."""
        if not self.options.include_stop:
            self._silent_ends = self.plan.params.stop_token_ids

    def scored(self, prompt: ScoredPrompt) -> None:
        """Take scores of the prompt."""
        assert prompt.start == len(self.scores) + 1
        self.scores.extend(prompt.tokens)

    def push(self, token: GeneratedToken) -> Delta | None:
        """Take a token; return what can be shown now. A completed stop string sets `finish`."""
        assert self.finish is None, "a token after the end"
        if not self.plan.shows_output:
            return None
        token_id = self._last_token_id = token.token_id
        self.num_tokens += 1
        self.tokens_by_engine[token.engine] += 1
        self.num_assisted += token.assisted
        if self.lists_tokens:
            chosen = ChosenToken(token_id, self._num_characters, token.logprobs, token.engine)
            self._pending.append(chosen)
        if token_id in self._silent_ends:
            return None
        text = self.detokenizer.push(token_id)
        self._num_characters += len(text)
        if self.stops is not None:
            text = self._past_stops(self.stops, text)
        delta = self._delta(text)
        if delta is None and self.tokens_at_once:
            return Delta("", self.remaining())
        return delta

    def end(self, end: GenerationEnd) -> Delta | None:
        """Take the end and set `finish`; return what was held back. Raises ApiError on failure."""
        if end.reason is FinishReason.REFUSED:
            raise invalid(self.plan.form_param, end.message)
        if end.reason not in {FinishReason.STOP, FinishReason.LENGTH}:
            raise server_error(end.message or "The generation failed.", "generation_failed")
        text = self.detokenizer.flush()
        if self.stops is not None:
            text = self._past_stops(self.stops, text)
            if self.finish is None:
                text += self.stops.flush()
        if self.finish is None:
            self.finish = Finish("length") if end.reason is FinishReason.LENGTH else self._stopped()
        return self._delta(text)

    @property
    def finish_reason(self) -> str:
        """Why the choice ended, in OpenAI's words."""
        assert self.finish is not None
        called = self.num_calls and self.finish.reason == "stop"
        return "tool_calls" if called else self.finish.reason

    def remaining(self) -> tuple[ChosenToken, ...]:
        """Return, once, the tokens that came after the last delta with text."""
        if not self._pending:
            return ()
        tokens, self._pending = tuple(self._pending), []
        return tokens

    def _past_stops(self, stops: StopMatcher, text: str) -> str:
        if self.num_tokens <= self.options.min_tokens:
            return text
        shown = stops.push(text)
        if stops.matched is not None:
            self.finish = Finish("stop", stops.matched)
        return shown

    def _stopped(self) -> Finish:
        token_id = self._last_token_id
        return Finish("stop", token_id if token_id in self.options.client_stop_token_ids else None)

    def _delta(self, text: str) -> Delta | None:
        if self.call_parser is None:
            return Delta(text, self.remaining()) if text else None
        pieces = self.call_parser.push(text)
        if self.finish is not None:
            pieces += self.call_parser.finish()
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = self._numbered([piece for piece in pieces if isinstance(piece, ToolCall)])
        return Delta(text, self.remaining(), calls) if text or calls else None

    def _numbered(self, calls: Sequence[ToolCall]) -> tuple[IndexedCall, ...]:
        limit = self.options.max_calls
        kept = calls if limit is None else calls[: max(0, limit - self.num_calls)]
        numbered = tuple(IndexedCall(i, call) for i, call in enumerate(kept, self.num_calls))
        self.num_calls += len(numbered)
        return numbered


def start_choices(
    plans: Sequence[ChoicePlan], table: TokenText, options: TextOptions
) -> list[Choice]:
    """Return the choices of a request, none begun."""
    strings = StopStrings(options.stop_strings) if options.stop_strings else None
    return [
        Choice(
            plan=plan,
            options=options,
            detokenizer=Detokenizer(
                table,
                plan.prompt.token_ids,
                show_special=options.show_special,
                visible_ids=options.visible_ids,
            ),
            stops=None if strings is None else StopMatcher(strings, included=options.include_stop),
            call_parser=None if options.call_parser is None else options.call_parser(),
        )
        for plan in plans
    ]


def prompt_lengths(choices: Sequence[Choice]) -> list[int]:
    """Return the tokens of each choice's prompt."""
    return [len(choice.plan.prompt.token_ids) for choice in choices]
