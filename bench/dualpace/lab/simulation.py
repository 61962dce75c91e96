"""One run: a system on a node under a workload."""

from collections.abc import Callable, Sequence

from dualpace.lab.metrics import Metrics, measure
from dualpace.lab.node import submit_all
from dualpace.lab.recorder import Recorder
from dualpace.lab.systems import Build, Hardware
from dualpace.lab.timeline import Timeline
from dualpace.lab.workload import Arrival

Progress = Callable[[int], None]


def simulate(
    build: Build,
    arrivals: Sequence[Arrival],
    hardware: Hardware | None = None,
    *,
    progress: Progress | None = None,
) -> Recorder:
    """Run until every request has ended, or nothing can happen any more.

    `progress` is told how many requests have ended.
    """
    timeline = Timeline()
    recorder = Recorder(arrivals)
    node = build(timeline, recorder, hardware or Hardware())
    submit_all(timeline, node, arrivals)
    told = 0
    while not recorder.complete and timeline.step():
        if progress is not None and recorder.finished != told:
            told = recorder.finished
            progress(told)
    return recorder


def simulated_metrics(
    build: Build, arrivals: Sequence[Arrival], hardware: Hardware | None = None
) -> Metrics:
    """Run and sum up."""
    return measure(simulate(build, arrivals, hardware))
