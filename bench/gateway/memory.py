"""Whether the gateway's memory stays flat over very many requests, against the stub engine.

    cd bench && ../.venv/bin/python -m gateway.memory

Whole answers, streams, bad requests and clients that leave, in turn, over kept connections.
Prints lines for people, then one JSON object with the resident memory of the gateway's process
after every so many requests. Measured, on this machine, in one run.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.client import Server, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_PROMPT = {"prompt": [5, 6, 7], "max_tokens": 4, "seed": 1, "ignore_eos": True}
_TALK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1}
_MIX: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, _PROMPT),
    (COMPLETIONS, _PROMPT | {"stream": True}),
    (CHAT, _TALK),
    (
        CHAT,
        _TALK
        | {"stream": True, "stop": ["\n\n", "END"], "stream_options": {"include_usage": True}},
    ),
    (COMPLETIONS, _PROMPT | {"n": 2, "logprobs": 2}),
    (COMPLETIONS, _PROMPT | {"temperature": 9}),  # 400
    (CHAT, _TALK | {"tools": []}),  # 400
]
_LONG = _PROMPT | {"stream": True, "max_tokens": 4096}
"""Its client leaves."""


class Connection:
    """A connection that is kept, and made anew where it is lost."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: dict[str, Any]) -> int:
        """Return the status of a whole answer."""
        reader, _ = await self._send(path, body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
        return int(head[9:12])

    async def leave(self, path: str, body: dict[str, Any]) -> int:
        """Read the beginning of an answer, and go."""
        reader, writer = await self._send(path, body)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        self._streams = None
        return int(head[9:12])

    async def _send(
        self, path: str, body: dict[str, Any]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._streams[1].write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return self._streams

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()


async def send_many(port: int, count: int, clients: int) -> Counter[int]:
    """Send requests from several clients at once; return how many got each status."""
    left = iter(range(count))
    statuses: Counter[int] = Counter()

    async def client() -> None:
        connection = Connection(port)
        for number in left:
            if number % 10 == 9:
                statuses[await connection.leave(COMPLETIONS, _LONG)] += 1
            else:
                statuses[await connection.ask(*_MIX[number % len(_MIX)])] += 1
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return statuses


def curve(
    server: Server, requests: int, every: int, send: Callable[[int], Awaitable[Counter[int]]]
) -> tuple[list[dict[str, float]], Counter[int]]:
    """Return memory after every so many requests, and all statuses."""
    points = []
    statuses: Counter[int] = Counter()
    for done in range(0, requests + 1, every):
        if done:
            statuses += asyncio.run(send(every))  # type: ignore[arg-type]
        server.get("/made")  # the stub's own notes, forgotten
        points.append({"requests": done, "rss_mib": round(server.rss_bytes() / 2**20, 2)})
        print(f"{done} requests: {points[-1]['rss_mib']} MiB", flush=True)
    return points, statuses


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=5_000)
    parser.add_argument("--clients", type=int, default=32)
    args = parser.parse_args()
    with serving("gateway") as server:
        points, statuses = curve(
            server,
            args.requests,
            args.every,
            lambda count: send_many(server.port, count, args.clients),
        )
    # The first tenth fills caches and pools.
    settled = [p["rss_mib"] for p in points if p["requests"] >= args.requests / 10]
    result = {
        "statuses": dict(statuses),
        "curve": points,
        "growth_after_a_tenth_mib": round(settled[-1] - settled[0], 2),
        "growth_in_the_second_half_mib": round(settled[-1] - settled[len(settled) // 2], 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
