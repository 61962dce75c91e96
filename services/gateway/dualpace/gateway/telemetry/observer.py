"""Times the generations of one request, for metrics and for its trace."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.core.clock import Clock
from dualpace.core.request import Engine
from dualpace.gateway.choices import Choice
from dualpace.gateway.limits.urgency import NO_URGENCY, Urgency
from dualpace.gateway.replies.common import usage_of
from dualpace.gateway.telemetry.metrics import Metrics
from dualpace.gateway.telemetry.request_metrics import Durations
from dualpace.gateway.telemetry.request_trace import request_trace


@dataclass(slots=True)
class _Course:
    """What is known of one generation."""

    prompt_tokens: int
    waited_s: float | None = None
    """Before its computation began; None: the engines have not said so yet."""
    first_s: float = 0.0
    last_s: float | None = None
    """Of its tokens; None before the first."""
    tokens: int = 0
    over: bool = False


class RequestObserver:
    """Feeds the metrics."""

    __slots__ = (
        "_arrival_s",
        "_begun",
        "_clock",
        "_courses",
        "_metrics",
        "_submitted_s",
        "_tallies",
        "_trace",
        "_urgency",
    )

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        arrival_s: float,
        prompt_lengths: Sequence[int],
        urgency: Urgency = NO_URGENCY,
    ) -> None:
        """prompt_lengths: in tokens, of each choice."""
        self._trace = request_trace()
        self._metrics = metrics
        self._tallies = metrics.tokens
        self._clock = clock
        self._arrival_s = arrival_s
        self._submitted_s = arrival_s
        self._urgency = urgency
        self._begun = False
        self._courses = [_Course(length) for length in prompt_lengths]

    @property
    def state(self) -> str:
        """How far the request is: waiting before its first token, then generating."""
        return "generating" if self._begun else "waiting"

    def submitted(self) -> None:
        """Note that the engines have the request."""
        self._submitted_s = self._clock.now()

    def started(self, index: int, waited_s: float) -> None:
        """Note that the computation of a choice has begun, and how long it had waited."""
        self._courses[index].waited_s = waited_s

    def token(self, index: int, engine: Engine) -> None:
        """Note a token of a choice."""
        now = self._clock.now()
        course = self._courses[index]
        last_s, course.last_s = course.last_s, now
        course.tokens += 1
        if last_s is not None:
            self._tallies.token(engine, now - last_s)
            return
        self._tallies.token(engine)
        course.first_s = now
        requests = self._metrics.requests
        requests.prompt_tokens.inc(course.prompt_tokens)
        requests.first_token.observe(now - self._arrival_s)
        if self._trace is not None and not self._begun:
            self._trace.first_token(now - self._arrival_s)
        self._begun = True
        target_s = self._urgency.first_token_s
        if target_s is not None:
            requests.slo("ttft", met=now - self._arrival_s <= target_s)

    def finished(self, index: int, reason: str) -> None:
        """Note the end of a choice."""
        course = self._courses[index]
        course.over = True
        requests = self._metrics.requests
        requests.ended(reason)
        requests.complete(
            self._durations(course), prompt_tokens=course.prompt_tokens, tokens=course.tokens
        )
        target_s = self._urgency.token_s
        if target_s is not None and course.last_s is not None and course.tokens > 1:
            mean_s = (course.last_s - course.first_s) / (course.tokens - 1)
            requests.slo("tpot", met=mean_s <= target_s)

    def given_up(self, reason: str) -> None:
        """Note that every choice still open will not end: abort or error."""
        for course in self._courses:
            if not course.over:
                course.over = True
                self._metrics.requests.ended(reason)
                if course.last_s is None and self._urgency.first_token_s is not None:
                    waited_s = self._clock.now() - self._arrival_s
                    if waited_s > self._urgency.first_token_s:
                        self._metrics.requests.slo("ttft", met=False)

        if self._trace is not None:
            self._trace.fail(reason)

    def over(self, choices: Sequence[Choice]) -> None:
        """Note that nothing more comes, whether it ended well or not."""
        if self._trace is not None:
            reasons = [c.finish_reason for c in choices if c.finish is not None]
            seconds = self._clock.now() - self._arrival_s
            self._trace.over(usage_of(choices), reasons, seconds)

    def _durations(self, course: _Course) -> Durations:
        prefill_s = decode_s = None
        if course.last_s is not None:
            decode_s = course.last_s - course.first_s
            if course.waited_s is not None:
                since_s = self._submitted_s + course.waited_s
                prefill_s = max(0.0, course.first_s - since_s)
        return Durations(
            e2e_s=self._clock.now() - self._arrival_s,
            queue_s=course.waited_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
        )
