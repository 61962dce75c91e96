"""What a Dense Assist call costs beside its compute: two real processes, through the Python layer.

    python bench/assist/round_trip.py [--calls 20000] [--rows 64] [--width 4096] [--spin-us 100]

An empty call (doorbell there and back), and one that carries rows up and three times as many bytes
down, copied on both sides. Beside them, in the same run: a bare futex ping-pong, and the same
copies within one process. Engines that have a CPU to spare spin for a moment before they sleep;
`--spin-us 0` shows what waking a sleeper costs, which is mostly the idle CPU's own wake-up. The
last line is one JSON object; times are microseconds.
"""

import argparse
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from dualpace.ipc.assist_channel import AssistChannel
from dualpace.ipc.assist_layout import STATUS_DONE, AssistGeometry, assist_layout
from dualpace.ipc.bell import SharedBell
from dualpace.kernels import publish, wait_changed

_HEAD_DIM = 128
_STOP = 1 << 20
_TIMEOUT_S = 10.0


def _percentiles(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "median": round(statistics.median(ordered) * 1e6, 2),
        "p99": round(ordered[int(len(ordered) * 0.99)] * 1e6, 2),
    }


def _timed(calls: int, call: Callable[[], None]) -> dict[str, float]:
    samples: list[float] = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return _percentiles(samples[calls // 10 :])


class _Region:
    """Bell and first channel over a shared mapping."""

    def __init__(self, memory: mmap.mmap, geometry: AssistGeometry, spin_s: float = 0.0) -> None:
        layout = assist_layout(geometry)
        data = np.frombuffer(memory, np.uint8)
        self.words = data[layout.num_bytes :][:4096].view(np.int32)
        self.bell = SharedBell(data[layout.bells :][:4].view(np.int32), spin_s=spin_s)
        self.channel = AssistChannel(data, layout.channels[0], geometry, self.bell)


def _device(memory: mmap.mmap, geometry: AssistGeometry, spin_s: float) -> None:
    """Answer calls: with rows, take them up and put three times as many bytes down."""
    region = _Region(memory, geometry, spin_s)
    channel = region.channel
    taken = np.empty_like(channel.attention)
    given = [np.ones_like(part) for part in (channel.q, channel.k, channel.v)]
    while True:
        region.bell.listen()
        if not channel.waiting:
            region.bell.wait(_TIMEOUT_S)
            continue
        if channel.boundary == _STOP:
            return
        if channel.num_rows:
            taken[:] = channel.attention
            for part, source in zip((channel.q, channel.k, channel.v), given, strict=True):
                part[:] = source
        channel.answer(STATUS_DONE, 0.0)


def _pong(memory: mmap.mmap, geometry: AssistGeometry, count: int) -> None:
    words = _Region(memory, geometry).words
    for number in range(count):
        wait_changed(words, 0, number, spin_ns=0, timeout_ns=10**10)
        publish(words, 16, number + 1)


def _in_child(run: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        run()
        os._exit(0)
    return child


def _futex(memory: mmap.mmap, geometry: AssistGeometry, calls: int) -> dict[str, float]:
    words = _Region(memory, geometry).words
    child = _in_child(lambda: _pong(memory, geometry, calls))
    number = 0

    def ping() -> None:
        nonlocal number
        number += 1
        publish(words, 0, number)
        wait_changed(words, 16, number - 1, spin_ns=0, timeout_ns=10**10)

    result = _timed(calls, ping)
    os.waitpid(child, 0)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--spin-us", type=float, default=100.0)
    arguments = parser.parse_args()
    heads = arguments.width // _HEAD_DIM
    geometry = AssistGeometry(
        rows=arguments.rows, num_heads=heads, num_kv_heads=heads, head_dim=_HEAD_DIM, itemsize=2
    )
    memory = mmap.mmap(-1, assist_layout(geometry).num_bytes + 4096)
    results: dict[str, dict[str, float]] = {"futex": _futex(memory, geometry, arguments.calls)}
    spin_s = arguments.spin_us * 1e-6
    child = _in_child(lambda: _device(memory, geometry, spin_s))
    channel = _Region(memory, geometry).channel
    up = np.ones_like(channel.attention)
    down = [np.empty_like(part) for part in (channel.q, channel.k, channel.v)]

    def copies() -> None:
        channel.attention[:] = up
        for target, part in zip(down, (channel.q, channel.k, channel.v), strict=True):
            target[:] = part

    def both_sides() -> None:
        copies()
        copies()

    def empty() -> None:
        channel.call(1, 0)
        assert channel.wait(_TIMEOUT_S, spin_s=spin_s)

    def loaded() -> None:
        channel.attention[:] = up
        channel.call(1, arguments.rows)
        assert channel.wait(_TIMEOUT_S, spin_s=spin_s)
        for target, part in zip(down, (channel.q, channel.k, channel.v), strict=True):
            target[:] = part

    few = max(200, arguments.calls // 10)
    results["memcpy"] = _timed(few, both_sides)
    results["empty"] = _timed(arguments.calls, empty)
    results["loaded"] = _timed(few, loaded)
    channel.call(_STOP, 0)
    os.waitpid(child, 0)
    over = results["loaded"]["median"] - results["empty"]["median"]
    ratio = round(over / results["memcpy"]["median"], 2)
    for name, times in results.items():
        print(f"{name:8} median {times['median']:9.2f} µs   p99 {times['p99']:9.2f} µs")
    print(f"a call with rows costs {ratio} x the memcpy time over an empty one (limit 1.5)")
    print(
        json.dumps(
            {
                **results,
                "loaded_over_memcpy": ratio,
                "unit": "us",
                "rows": arguments.rows,
                "spin_us": arguments.spin_us,
            }
        )
    )


if __name__ == "__main__":
    main()
