"""The clients: requests of a seed, sent at their times, and when each token came.

Clients of a real node are on other machines. These share one with what they measure, so they do as
little as can be (what comes is kept with its time, and read when all is over), and their thread
goes before all others: a time that waited for the gateway's next pause would be none of arrival.
"""

import json
import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from dualpace.lab.workload import Arrival

_VOCABULARY = 49_000
_HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass
class Outcome:
    """What a client saw of one request. Times are CLOCK_MONOTONIC seconds."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    on_host: list[bool] = field(default_factory=list)
    """Whether the host made the token."""

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [b - a for a, b in pairwise(self.token_s)]

    @property
    def host_resident(self) -> bool:
        """Whether nearly all of it was decoded on the host."""
        return sum(self.on_host) >= 0.9 * (len(self.token_s) - 1)

    @property
    def host_gaps(self) -> list[tuple[float, float]]:
        """Begin and end of each time that a client waited for a token of the host's."""
        return [
            gap for gap, host in zip(pairwise(self.token_s), self.on_host[1:], strict=True) if host
        ]


@dataclass(frozen=True, slots=True)
class Served:
    """What became of some requests."""

    outcomes: Sequence[Outcome]
    clients_first: bool
    """Whether the clients' thread went before others: else times have the wait for a core in them.
    """


def poisson_arrivals(requests: int, rate: float, seed: int) -> list[Arrival]:
    """Return the requests of a seed: prompts of 200 to 1000 tokens, answers of 40 to 120."""
    draw = random.Random(seed)  # noqa: S311 - a workload, the same in every run
    arrivals: list[Arrival] = []
    at_s = 0.0
    for index in range(requests):
        at_s += draw.expovariate(rate)
        arrivals.append(Arrival(index, at_s, draw.randint(200, 1000), draw.randint(40, 120)))
    return arrivals


def serve_all(url: str, arrivals: Sequence[Arrival], cpus: Iterable[int]) -> Served:
    """Send the requests at their times, from these CPUs; returns what came of each, in order."""
    clients = _Clients(url, arrivals)
    first: list[bool] = []

    def run() -> None:
        # Both hold for this thread alone.
        os.sched_setaffinity(0, cpus)
        first.append(_go_first())
        clients.run()

    thread = threading.Thread(target=run, name="clients")
    thread.start()
    thread.join()
    outcomes = clients.outcomes()
    assert len(outcomes) == len(arrivals), "a client failed"
    return Served(outcomes, first == [True])


def _go_first() -> bool:
    """Let this thread run as soon as it can; returns whether the machine allows it."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


class _Clients:
    """One connection for each request, all in one thread."""

    def __init__(self, url: str, arrivals: Sequence[Arrival]) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self._address = (where.hostname, where.port)
        self._due = [(arrival.arrival_s, _request_bytes(arrival)) for arrival in arrivals]
        self._sent: list[float] = []
        self._came: list[list[tuple[float, bytes]]] = [[] for _ in arrivals]

    def run(self) -> None:
        """Send and receive until every connection is closed."""
        begin_s = time.monotonic() + 0.5
        open_connections = 0
        with selectors.DefaultSelector() as selector:
            while open_connections or len(self._sent) < len(self._due):
                wait_s = None
                if len(self._sent) < len(self._due):
                    wait_s = begin_s + self._due[len(self._sent)][0] - time.monotonic()
                    if wait_s <= 0:
                        self._send(selector)
                        open_connections += 1
                        continue
                for key, _ in selector.select(wait_s):
                    open_connections -= self._receive(selector, key)

    def outcomes(self) -> list[Outcome]:
        """Return what came of each request, in order."""
        outcomes = [Outcome(sent_s) for sent_s in self._sent]
        for outcome, pieces in zip(outcomes, self._came, strict=True):
            _read(pieces, outcome)
        return outcomes

    def _send(self, selector: selectors.BaseSelector) -> None:
        connection = socket.create_connection(self._address)
        index = len(self._sent)
        self._sent.append(time.monotonic())
        connection.sendall(self._due[index][1])
        selector.register(connection, selectors.EVENT_READ, index)

    def _receive(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
        """Keep what has come on a connection; returns whether it was its end."""
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        data = connection.recv(1 << 16)
        if data:
            self._came[key.data].append((time.monotonic(), data))
            return False
        selector.unregister(connection)
        connection.close()
        return True


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
        if choice.get("token_ids"):
            outcome.token_s += [at_s] * len(choice["token_ids"])
            outcome.on_host += [engine == "cpu" for engine in choice["x_dualpace"]["engines"]]
