"""What bombs cost other requests, on a whole node: real engines, real gateway.

    cd bench && ../.venv/bin/python -m gateway.bombs

Clients stream text all the time; in every other window somebody throws bombs of one kind, one each
`--every` seconds. Prints lines for people, then one JSON object: tokens per second in the window,
in those around it, and the share that the bombs cost. Measured, on this machine, in one run.
"""

import argparse
import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import mean
from typing import Any

import httpx2
from gateway.bomb_kinds import Bomb, bombs

from dualpace.testing.served_node import served_node


class Readers:
    """Clients that stream without a pause, and count what they get."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self.chunks = [0] * count
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(index,)) for index in range(count)
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
    """Throws one kind of bomb, at a steady pace, and notes what came back."""

    def __init__(self, url: str, bomb: Bomb, every_s: float) -> None:
        self._url = url
        self._bomb = bomb
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._throw)
        self.statuses: list[int] = []
        self.seconds: list[float] = []

    def __enter__(self) -> "Thrower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _throw(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            self.statuses.append(throw(self._url, self._bomb))
            self.seconds.append(time.monotonic() - begin)
            self._stop.wait(max(0.0, begin + self._every_s - time.monotonic()))


def throw(url: str, bomb: Bomb) -> int:
    """Send a bomb; return the answer's status."""
    headers = {"Content-Type": "application/json"}
    content = bomb.parts() if bomb.chunked else bomb.body
    with httpx2.Client(timeout=60) as client:
        return int(client.post(url + bomb.path, content=content, headers=headers).status_code)


def measure(url: str, readers: Readers, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each kind cost."""
    kinds = [bomb for bomb in bombs() if args.only in bomb.name]
    rates = [readers.rate(args.window)]
    thrown: list[tuple[float, Thrower]] = []
    for bomb in kinds:
        with Thrower(url, bomb, args.every) as thrower:
            rate = readers.rate(args.window)
        thrown.append((rate, thrower))
        rates.append(readers.rate(args.window))
    found = []
    for index, (bomb, (rate, thrower)) in enumerate(zip(kinds, thrown, strict=True)):
        around = mean(rates[index : index + 2])
        found.append(_result(bomb, rate, around, thrower))
    return found


def _result(bomb: Bomb, rate: float, around: float, thrower: Thrower) -> dict[str, Any]:
    result = {
        "bomb": bomb.name,
        "statuses": sorted(set(thrower.statuses)),
        "expected": bomb.status,
        "thrown": len(thrower.statuses),
        "slowest_answer_s": round(max(thrower.seconds), 3),
        "tokens_per_s": round(rate, 1),
        "tokens_per_s_around": round(around, 1),
        "cost": round(1 - rate / around, 4),
    }
    print(f"{bomb.name}: {result['statuses']}, cost {result['cost']:.1%}", flush=True)
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two bombs")
    parser.add_argument("--only", default="", help="part of the names of those to throw")
    parser.add_argument("--url", help="of a node that runs already")
    args = parser.parse_args(argv)
    with ExitStack() as stack:
        url = args.url or stack.enter_context(served_node("demo", "--arena-mib=256")).url
        readers = stack.enter_context(Readers(url, args.readers))
        readers.rate(3)  # warms up
        found = measure(url, readers, args)
        assert not readers.failures, readers.failures
    print(json.dumps({"readers": args.readers, "every_s": args.every, "bombs": found}))


if __name__ == "__main__":
    main()
