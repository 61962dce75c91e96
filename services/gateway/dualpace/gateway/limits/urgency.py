"""How urgent a request is, from its headers: priority, and targets for its latencies.

Two senses of priority meet here. In vLLM's, lower is sooner (the field `priority`, the header
`x-request-priority`); in that of llm-d's objectives, which a picker sends by name and the operator
gives numbers to, higher is sooner. Inside, lower is sooner.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dualpace.core.request import MAX_PRIORITY, MAX_TARGET_S, MIN_PRIORITY
from dualpace.gateway.errors import invalid, shorten
from dualpace.gateway.protocol.generation import CommonRequest

PRIORITY_HEADER = "x-request-priority"
OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FIRST_TOKEN_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TOKEN_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
"""Each with its older name, which counts where the newer is absent."""


@dataclass(frozen=True, slots=True)
class Urgency:
    """What headers said; None where they said nothing."""

    priority: int | None = None
    """Lower is sooner."""
    first_token_s: float | None = None
    """The client's target for its first token, from the request's arrival."""
    token_s: float | None = None
    """The client's target for the mean time between later tokens."""

    def priority_of(self, request: CommonRequest) -> int:
        """Return a request's priority: its field's, if it has one, else the headers'."""
        if self.priority is None or "priority" in request.model_fields_set:
            return request.priority
        return self.priority


NO_URGENCY = Urgency()


def urgency_of(headers: Mapping[str, str], objectives: Mapping[str, int]) -> Urgency:
    """Return what the headers say. Raises ApiError 400 that names the header at fault.

    headers: names in lower case, or a mapping that does not mind. objectives: higher is sooner.
    """
    return Urgency(
        _priority(headers, objectives),
        _seconds(headers, FIRST_TOKEN_HEADERS),
        _seconds(headers, TOKEN_HEADERS),
    )


def _priority(headers: Mapping[str, str], objectives: Mapping[str, int]) -> int | None:
    text = headers.get(PRIORITY_HEADER)
    if text is not None:
        digits = text.removeprefix("-")
        plain = digits.isascii() and digits.isdecimal() and len(digits) <= 10
        if not plain or not MIN_PRIORITY <= int(text) <= MAX_PRIORITY:
            raise invalid(
                PRIORITY_HEADER,
                f"must be a whole number of 32 bits, signed (got {shorten(text, 40)})",
            )
        return int(text)
    for name in OBJECTIVE_HEADERS:
        if name in headers:
            # Objectives that have no number here count as llm-d's own default, 0.
            return -objectives.get(headers[name], 0)
    return None


def _seconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    for name in names:
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) / 1000 if text.isascii() and len(text) <= 20 else 0.0
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds <= MAX_TARGET_S:
            most = round(MAX_TARGET_S * 1000)
            raise invalid(
                name,
                f"must be a number of milliseconds, over 0 to {most} (got {shorten(text, 40)})",
            )
        return seconds
    return None


def objectives_from_text(text: str) -> dict[str, int]:
    """Read `name=priority,…`. Raises ValueError that says what is wrong."""
    objectives: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = entry.partition("=")
        if not name or not equals:
            raise ValueError(f"{entry!r} is not name=priority")
        try:
            objectives[name] = int(number)
        except ValueError:
            raise ValueError(f"{number!r} is no whole number") from None
        if not MIN_PRIORITY < objectives[name] <= MAX_PRIORITY:
            raise ValueError(f"{number} is not in {MIN_PRIORITY + 1}..{MAX_PRIORITY}")
    return objectives
