"""What bombs cost other requests, on a whole node: real engines, real gateway.

    cd bench && ../.venv/bin/python -m gateway.bombs

Clients stream text all the time. Time is cut into short windows, two by two: in one of each pair
somebody throws `--bombs` bombs, evenly spread, of every kind in turn, and which of the two that is
alternates. So whatever drifts is the same in both, and the pairs' differences tell the cost and
its standard error. A window lasts until its bombs are answered. Prints lines for people, then one
JSON object. Measured, on this machine, in one run; whoever throws, too, takes of its cores.
"""

import argparse
import json
import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import mean, stdev
from typing import Any

import httpx2
import psutil
from decoupling.neighbours import Neighbours
from gateway.bomb_kinds import Bomb, bombs

from dualpace.testing.served_node import served_node

_SETTLES_S = 0.2
"""Between two windows: what a bomb leaves behind is not counted as peace."""


class Readers:
    """Clients that stream without a pause, and count what they get."""

    def __init__(self, url: str, number: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self.chunks = [0] * number
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(index,)) for index in range(number)
        ]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def tokens(self) -> int:
        """How many tokens came so far."""
        return sum(self.chunks)

    def _read(self, index: int) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 256, "stream": True, "ignore_eos": True}
        with httpx2.Client(timeout=60) as client:
            while not self._stop.is_set():
                with client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
                    for line in response.iter_lines():
                        self.chunks[index] += '"finish_reason":null' in line
                        if self._stop.is_set():
                            return
                    if response.status_code != 200:
                        self.failures.append(f"status {response.status_code}")
                        return


class Thrower:
    """Throws bombs of each kind in turn, and notes what came back."""

    def __init__(self, url: str, kinds: Sequence[Bomb]) -> None:
        self._url = url
        self._kinds = kinds
        self._thrown = 0
        self.answers: dict[str, list[tuple[int, float]]] = {bomb.name: [] for bomb in kinds}
        """By kind: status and seconds of each."""

    def throw(self) -> None:
        """Throw the next one, and wait for its answer."""
        bomb = self._kinds[self._thrown % len(self._kinds)]
        content = bomb.content(self._thrown)
        self._thrown += 1
        headers = {"Content-Type": "application/json"}
        begin = time.monotonic()
        with httpx2.Client(timeout=60) as client:
            response = client.post(self._url + bomb.path, content=content, headers=headers)
        self.answers[bomb.name].append((response.status_code, time.monotonic() - begin))


class Windows:
    """Measures how fast tokens come, with bombs and without."""

    def __init__(self, readers: Readers, thrower: Thrower, seconds: float, bombs_each: int) -> None:
        self._readers = readers
        self._thrower = thrower
        self._seconds = seconds
        self._bombs_each = bombs_each

    def rate(self, *, bombed: bool) -> float:
        """Return tokens per second in one window."""
        time.sleep(_SETTLES_S)
        begin, before = time.monotonic(), self._readers.tokens
        if bombed:
            for number in range(self._bombs_each):
                due = begin + self._seconds * number / self._bombs_each
                time.sleep(max(0.0, due - time.monotonic()))
                self._thrower.throw()
        time.sleep(max(0.0, begin + self._seconds - time.monotonic()))
        return (self._readers.tokens - before) / (time.monotonic() - begin)

    def pair(self, number: int) -> tuple[float, float]:
        """Return the rates without and with bombs; odd pairs have the bombs first."""
        first = self.rate(bombed=bool(number % 2))
        second = self.rate(bombed=not number % 2)
        return (second, first) if number % 2 else (first, second)


def measure(windows: Windows, pairs: int) -> dict[str, Any]:
    """Return tokens per second with bombs and without, and what share the bombs cost."""
    rates = []
    for number in range(pairs):
        rates.append(windows.pair(number))
        print("peace {:.1f}, bombs {:.1f} tokens/s".format(*rates[-1]), flush=True)
    return summary(rates)


def summary(rates: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the cost, a share of the rate in peace, from pairs of rates: in peace, with bombs."""
    peace = mean(rate for rate, _ in rates)
    lost = [in_peace - bombed for in_peace, bombed in rates]
    return {
        "pairs": len(rates),
        "peace_tokens_per_s": round(peace, 2),
        "bombs_tokens_per_s": round(mean(rate for _, rate in rates), 2),
        "cost": round(mean(lost) / peace, 4),
        "standard_error": round(stdev(lost) / math.sqrt(len(lost)) / peace, 4),
    }


def answers(thrower: Thrower, kinds: Sequence[Bomb]) -> dict[str, dict[str, Any]]:
    """Return by kind what came back."""
    return {
        bomb.name: {
            "expected": bomb.status,
            "statuses": sorted({status for status, _ in thrower.answers[bomb.name]}),
            "thrown": len(thrower.answers[bomb.name]),
            "slowest_s": round(max(seconds for _, seconds in thrower.answers[bomb.name]), 3),
        }
        for bomb in kinds
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=42, help="of windows; two at least")
    parser.add_argument("--window", type=float, default=2.0, help="seconds")
    parser.add_argument("--bombs", type=int, default=2, help="in each window that has bombs")
    args = parser.parse_args(argv)
    kinds = bombs()
    with ExitStack() as stack:
        node = stack.enter_context(served_node("demo", "--arena-mib=256"))
        thrower = Thrower(node.url, kinds)
        readers = stack.enter_context(Readers(node.url, args.readers))
        for _ in kinds:  # warms up
            thrower.throw()
        time.sleep(2)
        neighbours = Neighbours([psutil.Process(), *node.services().values()])
        found = measure(Windows(readers, thrower, args.window, args.bombs), args.pairs)
        found["others_share_of_the_cores"] = round(neighbours.share(), 4)
        assert not readers.failures, readers.failures
    result = {"readers": args.readers, "bombs_per_s": args.bombs / args.window}
    print(json.dumps(result | {"kinds": answers(thrower, kinds)} | found))


if __name__ == "__main__":
    main()
