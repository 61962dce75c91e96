"""The clients: requests of a seed, sent at their times, and when each token came.

While they run they do as little as can be, since they share the machine with what is measured: what
comes is kept with its time, and read when all is over.
"""

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from dualpace.lab.workload import Arrival

_VOCABULARY = 49_000
_NICENESS = 10
_HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass
class Outcome:
    """What a client saw of one request. Times are CLOCK_MONOTONIC seconds."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    on_host: int = 0

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [b - a for a, b in pairwise(self.token_s)]

    @property
    def host_resident(self) -> bool:
        """Whether nearly all of it was decoded on the host."""
        return self.on_host >= 0.9 * (len(self.token_s) - 1)


def poisson_arrivals(requests: int, rate: float, seed: int) -> list[Arrival]:
    """Return the requests of a seed: prompts of 200 to 1000 tokens, answers of 40 to 120."""
    draw = random.Random(seed)  # noqa: S311 - a workload, the same in every run
    arrivals: list[Arrival] = []
    at_s = 0.0
    for index in range(requests):
        at_s += draw.expovariate(rate)
        arrivals.append(Arrival(index, at_s, draw.randint(200, 1000), draw.randint(40, 120)))
    return arrivals


def serve_all(url: str, arrivals: Sequence[Arrival], cpus: Iterable[int]) -> list[Outcome]:
    """Send the requests at their times, from these CPUs; returns what came of each, in order.

    Clients of a real node are on other machines: these give way to everybody else.
    """
    outcomes: list[Outcome] = []

    def run() -> None:
        # Both hold for this thread alone.
        os.sched_setaffinity(0, cpus)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        outcomes.extend(asyncio.run(_send_all(url, arrivals)))

    thread = threading.Thread(target=run, name="clients")
    thread.start()
    thread.join()
    assert len(outcomes) == len(arrivals), "a client failed"
    return outcomes


async def _send_all(url: str, arrivals: Sequence[Arrival]) -> list[Outcome]:
    requests = [_request_bytes(arrival) for arrival in arrivals]
    begin_s = time.monotonic() + 0.5
    tasks = [
        asyncio.create_task(_ask(url, request, begin_s + arrival.arrival_s))
        for arrival, request in zip(arrivals, requests, strict=True)
    ]
    return list(await asyncio.gather(*tasks))


def _request_bytes(arrival: Arrival) -> bytes:
    draw = random.Random(arrival.request_id)  # noqa: S311
    body = {
        "prompt": [draw.randrange(_VOCABULARY) for _ in range(arrival.prompt_tokens)],
        "max_tokens": arrival.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "x_dualpace": True,
    }
    content = json.dumps(body).encode()
    head = f"{_HEAD}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode() + content


async def _ask(url: str, request: bytes, at_s: float) -> Outcome:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    where = urlsplit(url)
    assert where.port is not None
    outcome = Outcome(time.monotonic())
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(request)
    pieces: list[tuple[float, bytes]] = []
    while data := await reader.read(1 << 16):
        pieces.append((time.monotonic(), data))
    writer.close()
    _read(pieces, outcome)
    return outcome


def _read(pieces: Sequence[tuple[float, bytes]], outcome: Outcome) -> None:
    """Enter tokens into an outcome, each with the time of the piece that completed its event."""
    assert pieces, "the gateway closed the connection"
    assert pieces[0][1].split(b" ", 2)[1] == b"200", pieces[0][1][:500]
    rest = b""
    for at_s, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                _event(json.loads(line[6:]), at_s, outcome)


def _event(event: dict[str, Any], at_s: float, outcome: Outcome) -> None:
    assert "error" not in event, event
    for choice in event["choices"]:
        outcome.token_s += [at_s] * len(choice.get("token_ids") or ())
        told = choice.get("x_dualpace")
        if told is not None and "tokens" in told:
            outcome.on_host = told["tokens"]["cpu"]
