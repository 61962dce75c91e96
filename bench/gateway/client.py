"""Starts a server of `servers.py`, and reads many streams at once with as little work as can be."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVERS = Path(__file__).with_name("servers.py")


@dataclass
class Server:
    """A server in a process of its own, on the lowest core."""

    port: int
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)

    def cpu_s(self) -> float:
        """Return the processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Return the memory that the process has in use."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def serving(kind: str, pause_ms: float = 0.0, chunk: bytes = b"") -> Iterator[Server]:
    """Serve for as long as the context lasts, and keep this process off the server's core."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(SERVERS), kind, str(port), str(pause_ms), chunk.hex()]
    server = Server(port, subprocess.Popen(command))  # noqa: S603 - our own command
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, cores - {min(cores)})
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                server.get("/readyz")
            except OSError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.1)
            else:
                break
        yield server
    finally:
        os.sched_setaffinity(0, cores)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()


@dataclass
class Stream:
    """What came of one stream."""

    chunks: int = 0
    times: list[float] = field(default_factory=list)
    """Of each chunk, on CLOCK_MONOTONIC."""
    status: int = 0


def request_bytes(body: Any, path: str = "/v1/completions") -> bytes:
    """Return an HTTP request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


async def read_stream(port: int, seed: int, tokens: int, *, timed: bool = False) -> Stream:
    """Read one stream to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"prompt": [5, 6, 7], "stream": True, "max_tokens": tokens, "seed": seed}
    writer.write(request_bytes({**body, "ignore_eos": True}))
    stream = Stream()
    async for data in _blocks(reader):
        if not stream.status:
            stream.status = int(data[9:12])
        count = data.count(b'"finish_reason":null')
        stream.chunks += count
        if timed:
            stream.times += [time.monotonic()] * count
    writer.close()
    return stream


async def _blocks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield what came, cut at event borders."""
    rest = b""
    while data := await reader.read(1 << 16):
        data = rest + data
        end = data.rfind(b"\n\n") + 2
        if end > 1:
            yield data[:end]
            rest = data[end:]
        else:
            rest = data
    yield rest


async def read_streams(
    port: int, count: int, tokens: int, *, timed: bool = False, awake: bool = True
) -> tuple[list[Stream], float]:
    """Read streams at once; return them and the seconds it took."""
    begin = time.monotonic()
    waker = asyncio.create_task(_stay_awake()) if awake else None
    streams = await asyncio.gather(
        *(read_stream(port, seed, tokens, timed=timed) for seed in range(count))
    )
    if waker is not None:
        waker.cancel()
    return list(streams), time.monotonic() - begin


async def _stay_awake() -> None:
    """Keep this process from sleeping: whoever writes to one that sleeps pays for waking it.

    Clients on the other side of a network cost a server nothing of the kind, and a server that is
    fast enough to keep these here busy never has to.
    """
    while True:  # noqa: ASYNC110 - there is nothing to wait for
        await asyncio.sleep(0)
