"""Figure 1: tokens over time, all of them and those made on the CPU, near NEO's limit."""

from bisect import bisect_right

import numpy as np

from dualpace.lab.figures.page import COLORS, Book
from dualpace.lab.recorder import Recorder
from dualpace.lab.simulation import simulate
from dualpace.lab.systems import Hardware, system
from dualpace.lab.traces import workload
from dualpace.lab.workload import poisson

SYSTEMS = ("dualpace", "neo-measured", "neo")
RATE = 3.0


def draw(book: Book, hardware: Hardware, *, requests: int, seed: int) -> None:
    """Draw figure 1."""
    figure, (everything, host) = book.page(2, f"Tokens over time at {RATE} requests/s")
    rows = []
    arrivals = poisson(workload("azure-conv", count=requests), RATE, seed)
    for name in SYSTEMS:
        recorder = simulate(system(name), arrivals, hardware)
        seconds, total, on_host = _curves(recorder)
        stall = recorder.longest_host_stall_s
        everything.plot(seconds, total, color=COLORS[name], label=name)
        host.plot(seconds, on_host, color=COLORS[name], label=f"{name}: stall {stall:.1f} s")
        rows += [
            {
                "system": name,
                "second": int(second),
                "tokens": int(tokens),
                "cpu_tokens": int(cpu_tokens),
                "longest_cpu_stall_s": stall,
            }
            for second, tokens, cpu_tokens in zip(seconds, total, on_host, strict=True)
        ]
    everything.set(title="all", xlabel="s", ylabel="tokens")
    host.set(title="made on the CPU, and its longest stall", xlabel="s", ylabel="tokens")
    everything.legend()
    host.legend()
    book.save("figure-01-progress", figure, rows)


def _curves(recorder: Recorder) -> tuple[list[int], list[int], list[int]]:
    times = np.sort(np.concatenate([t.times_s for t in recorder.tracks.values()]))
    seconds = list(range(0, int(times[-1]) + 6, 5))
    total = [int(n) for n in np.searchsorted(times, seconds, side="right")]
    ends = [end for _, end, _ in recorder.host_steps]
    made = [0, *(int(n) for n in np.cumsum([rows for _, _, rows in recorder.host_steps]))]
    return seconds, total, [made[bisect_right(ends, second)] for second in seconds]
