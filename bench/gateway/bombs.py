"""What bombs cost other requests, on a whole node: real engines, real gateway.

    cd bench && ../.venv/bin/python -m gateway.bombs

Clients stream text all the time; in half of the windows somebody throws bombs, one each `--every`
seconds, of every kind in turn. Prints lines for people, then one JSON object: tokens per second
with and without, and the share that the bombs cost. Measured, on this machine, in one run.
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from statistics import mean, stdev
from typing import Any

import httpx2
from gateway.bomb_kinds import Bomb, bombs

from dualpace.testing.served_node import served_node


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

    def rate(self, seconds: float) -> float:
        """Return tokens per second over the next `seconds`."""
        before, begin = sum(self.chunks), time.monotonic()
        time.sleep(seconds)
        return (sum(self.chunks) - before) / (time.monotonic() - begin)

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
    """Throws bombs of each kind in turn, at a steady pace, and notes what came back."""

    def __init__(self, url: str, kinds: Sequence[Bomb], every_s: float) -> None:
        self._url = url
        self._kinds = kinds
        self._every_s = every_s
        self._stop = threading.Event()
        self._numbers = count()
        self.answers: dict[str, list[tuple[int, float]]] = {bomb.name: [] for bomb in kinds}
        """By kind: status and seconds of each."""

    def throw(self) -> None:
        """Throw the next one, and wait for its answer."""
        number = next(self._numbers)
        bomb = self._kinds[number % len(self._kinds)]
        headers = {"Content-Type": "application/json"}
        begin = time.monotonic()
        with httpx2.Client(timeout=60) as client:
            response = client.post(
                self._url + bomb.path, content=bomb.content(number), headers=headers
            )
        self.answers[bomb.name].append((response.status_code, time.monotonic() - begin))

    @contextmanager
    def throwing(self) -> Iterator[None]:
        """Throw for as long as the context lasts."""
        self._stop.clear()
        thread = threading.Thread(target=self._throw_all)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _throw_all(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += self._every_s
            self.throw()


def measure(readers: Readers, thrower: Thrower, windows: int, seconds: float) -> dict[str, Any]:
    """Return tokens per second with bombs and without, in windows that take turns (ABBA)."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for window in range(windows):
        bombed = window % 4 in (1, 2)
        with thrower.throwing() if bombed else nullcontext():
            rates[bombed].append(readers.rate(seconds))
        print(f"{'bombs' if bombed else 'peace'}: {rates[bombed][-1]:.1f} tokens/s", flush=True)
    peace, bombs_ = mean(rates[False]), mean(rates[True])
    return {
        "tokens_per_s": {"peace": rates[False], "bombs": rates[True]},
        "cost": round(1 - bombs_ / peace, 4),
        "standard_error": round(_relative_error(rates[False]) + _relative_error(rates[True]), 4),
    }


def _relative_error(rates: Sequence[float]) -> float:
    return stdev(rates) / len(rates) ** 0.5 / mean(rates) if len(rates) > 1 else float("nan")


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
    parser.add_argument("--windows", type=int, default=12, help="a multiple of 4")
    parser.add_argument("--window", type=float, default=6.0, help="seconds")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two bombs")
    parser.add_argument("--url", help="of a node that runs already")
    args = parser.parse_args(argv)
    kinds = bombs()
    with ExitStack() as stack:
        url = args.url or stack.enter_context(served_node("demo", "--arena-mib=256")).url
        thrower = Thrower(url, kinds, args.every)
        readers = stack.enter_context(Readers(url, args.readers))
        for _ in kinds:  # warms up
            thrower.throw()
        readers.rate(2)
        found = measure(readers, thrower, args.windows, args.window)
        assert not readers.failures, readers.failures
    result = {"readers": args.readers, "every_s": args.every, "kinds": answers(thrower, kinds)}
    print(json.dumps(result | found))


if __name__ == "__main__":
    main()
