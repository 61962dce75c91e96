"""What is asked of a simulated node: arrivals with prompt and output lengths.

Lengths come from traces or distributions, arrival times from a trace or a Poisson process with a
seed. It knows nothing of who serves them.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    request_id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request of a trace, and when it came there."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


def poisson(lengths: Sequence[Lengths], rate: float, seed: int) -> list[Arrival]:
    """Exponential gaps with mean `1 / rate` seconds; rate `inf`: everybody comes at once.

    Times are rounded to microseconds, so that libraries that differ in the last bit of a logarithm
    give the same run.
    """
    if not rate > 0:
        raise SettingsError(f"rate: {rate} is not above zero")
    draw = random.Random(seed)  # noqa: S311 - a simulation, and it must be repeatable
    now = 0.0
    arrivals = []
    for index, item in enumerate(lengths):
        if not math.isinf(rate):
            now = round(now + draw.expovariate(rate), 6)
        arrivals.append(Arrival(index, now, item.prompt_tokens, item.output_tokens))
    return arrivals


def require_fit(lengths: Sequence[Lengths], kv_tokens: int) -> None:
    """Refuse requests that a device with room for `kv_tokens` could never hold.

    Every prompt is computed there. Raises SettingsError.
    """
    longest = max(item.prompt_tokens + item.output_tokens for item in lengths)
    too_long = sum(item.prompt_tokens + item.output_tokens > kv_tokens for item in lengths)
    if too_long:
        raise SettingsError(
            f"workload: {too_long} of {len(lengths)} requests are longer than the device's KV "
            f"memory, {kv_tokens}; the longest has {longest}: give it more blocks, or a larger GPU"
        )


def replay(lengths: Sequence[Lengths], speed: float = 1.0) -> list[Arrival]:
    """The trace's own times, `speed` times as fast."""
    if not speed > 0:
        raise SettingsError(f"speed: {speed} is not above zero")
    start = lengths[0].seconds if lengths else 0.0
    return [
        Arrival(i, round((item.seconds - start) / speed, 6), item.prompt_tokens, item.output_tokens)
        for i, item in enumerate(lengths)
    ]


def fixed(count: int, prompt_tokens: int, output_tokens: int) -> list[Lengths]:
    """All requests alike."""
    return [Lengths(0.0, prompt_tokens, output_tokens)] * count


def sharegpt_like(count: int, seed: int) -> list[Lengths]:
    """Synthetic chat turns: log-normal lengths with ShareGPT's medians and tails, roughly.

    Medians 60 and 180 tokens, log-deviations 1.4 and 1.0, cut at 2,048 and 1,024.
    """
    draw = random.Random(f"sharegpt/{seed}")  # noqa: S311

    def tokens(median: float, deviation: float, most: int) -> int:
        return max(1, min(most, round(median * math.exp(draw.gauss(0.0, deviation)))))

    return [Lengths(0.0, tokens(60, 1.4, 2048), tokens(180, 1.0, 1024)) for _ in range(count)]
