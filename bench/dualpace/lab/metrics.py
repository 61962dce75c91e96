"""What a run comes to: latencies, throughput, stalls. Seconds, tokens, shares.

ITL is every gap between two tokens of one request, all requests pooled. TPOT is the mean gap of a
request, TTFT the time to its first token, both over requests. Throughput counts output tokens while
the middle of the run was made: from 10 % of all tokens to 80 %, so that neither the first rush nor
the emptying at the end counts.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from dualpace.lab.recorder import Recorder

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """One run."""

    requests: int
    finished: int
    duration_s: float
    tokens_per_s: float
    requests_per_s: float
    """`tokens_per_s` over the mean output length."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    host_itl_p50_s: float
    host_itl_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    normalized_latency_s: float
    """Mean of (end - arrival) / output tokens."""
    host_token_share: float
    longest_host_stall_s: float
    most_host_steps_waited: int
    host_steps: int
    gpu_busy: float
    assist_share: float
    """Of the run, what assist took of the GPU."""

    def as_dict(self) -> dict[str, float]:
        """Return plain numbers; what does not exist is NaN."""
        return asdict(self)


def measure(recorder: Recorder) -> Metrics:
    """Sum a run up. Requests that never ended count in `requests` alone."""
    tracks = [t for t in recorder.tracks.values() if len(t.times_s) == t.arrival.output_tokens]
    times = [np.array(t.times_s) for t in tracks]
    arrived = np.array([t.arrival.arrival_s for t in tracks])
    counts = np.array([len(t) for t in times], dtype=np.float64)
    first = np.array([t[0] for t in times])
    last = np.array([t[-1] for t in times])
    gaps = np.concatenate([np.diff(t) for t in times]) if times else np.array([])
    several = counts > 1
    tpot = (last - first)[several] / (counts[several] - 1)
    duration = float(last.max()) if times else math.nan
    host_gaps = np.array(recorder.host_gaps_s)
    throughput = _middle_rate(np.concatenate(times)) if times else math.nan
    return Metrics(
        requests=len(recorder.tracks),
        finished=recorder.finished,
        duration_s=duration,
        tokens_per_s=throughput,
        requests_per_s=throughput / float(counts.mean()) if times else math.nan,
        ttft_mean_s=_mean(first - arrived),
        ttft_p50_s=_percentile(first - arrived, 50),
        ttft_p99_s=_percentile(first - arrived, 99),
        itl_p50_s=_percentile(gaps, 50),
        itl_p99_s=_percentile(gaps, 99),
        host_itl_p50_s=_percentile(host_gaps, 50),
        host_itl_p99_s=_percentile(host_gaps, 99),
        tpot_mean_s=_mean(tpot),
        tpot_p99_s=_percentile(tpot, 99),
        normalized_latency_s=_mean((last - arrived) / counts),
        host_token_share=len(host_gaps) / max(1.0, float(counts.sum())),
        longest_host_stall_s=recorder.longest_host_stall_s,
        most_host_steps_waited=recorder.most_host_steps_waited,
        host_steps=len(recorder.host_steps),
        gpu_busy=recorder.gpu_busy_s / duration,
        assist_share=recorder.assist_s / duration,
    )


def _middle_rate(times: Array) -> float:
    times.sort()
    begin, end = int(0.1 * len(times)), int(0.8 * len(times))
    span = float(times[end] - times[begin])
    return (end - begin) / span if span > 0 else math.nan


def _percentile(values: Array, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else math.nan
