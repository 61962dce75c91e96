"""How many chunks a second the gateway streams on one core, and how late a token gets.

    cd bench && ../.venv/bin/python -m gateway.speed

Against a bare Starlette application that sends the same bytes, one chunk at a turn of its event
loop as the stub engine makes tokens; both run on one core, uvicorn and garbage collector set up as
the gateway's own process sets them up. The ratio is what counts. Where other processes compete for
the cores, the ratio by processor time is the better one. The clients stay awake, unless they are
to sleep: to wake a process that sleeps costs whoever writes to it, on this machine alone, and only
a server that is slow enough to let them sleep pays for that. The stub runs inside the gateway's
process, at the gateway's cost.

Prints lines for people, then one JSON object. Measured, on this machine, in one run.
"""

import argparse
import asyncio
import json
from statistics import median
from typing import Any

from gateway.client import Server, read_streams, request_bytes, serving


async def one_chunk(port: int) -> bytes:
    """Return the gateway's own bytes for one token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"prompt": [5, 6, 7], "stream": True, "max_tokens": 3, "seed": 1, "ignore_eos": True}
    writer.write(request_bytes(body))
    text = await reader.read()
    writer.close()
    return next(
        b"data: " + part.partition(b"data: ")[2] + b"\n\n"
        for part in text.split(b"\n\n")
        if b'"finish_reason":null' in part
    )


def throughput(
    server: Server, streams: int, tokens: int, repeats: int, *, awake: bool = True
) -> tuple[list[float], float]:
    """Return chunks per second, run by run, and per second of the server's processor time.

    The first run, which warms up, does not count.
    """
    rates: list[float] = []
    cpu_s = 0.0
    for _ in range(repeats + 1):
        found, seconds = asyncio.run(read_streams(server.port, streams, tokens, awake=awake))
        assert all(s.status == 200 for s in found)
        assert sum(s.chunks for s in found) == streams * tokens, "chunks were joined or lost"
        rates.append(streams * tokens / seconds)
        if len(rates) == 1:
            cpu_s = server.cpu_s()
    return rates[1:], repeats * streams * tokens / (server.cpu_s() - cpu_s)


def lateness_ms(server: Server, streams: int, tokens: int) -> list[float]:
    """Return how long after it was made each chunk arrived, sorted; the first fifth is left out."""
    server.get("/made")
    found, _ = asyncio.run(read_streams(server.port, streams, tokens, timed=True))
    made = server.get("/made")
    late = []
    for seed, stream in enumerate(found):
        pairs = list(zip(made[str(seed)], stream.times, strict=True))
        late += [(arrived - when) * 1000 for when, arrived in pairs[tokens // 5 :]]
    return sorted(late)


def percentile(values: list[float], share: float) -> float:
    """Return the value that so large a share does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sleeping", action="store_true", help="clients sleep when they can")
    args = parser.parse_args()
    awake = not args.sleeping
    result: dict[str, Any] = {"streams": args.streams, "tokens": args.tokens, "awake": awake}
    with serving("gateway") as server:
        chunk = asyncio.run(one_chunk(server.port))
        rates, per_cpu_s = throughput(server, args.streams, args.tokens, args.repeats, awake=awake)
    with serving("bare", chunk=chunk) as server:
        bare, bare_per_cpu_s = throughput(
            server, args.streams, args.tokens, args.repeats, awake=awake
        )
    result |= {
        "gateway_chunks_per_s": round(median(rates)),
        "bare_chunks_per_s": round(median(bare)),
        "ratio": round(median(rates) / median(bare), 3),
        "gateway_chunks_per_cpu_s": round(per_cpu_s),
        "bare_chunks_per_cpu_s": round(bare_per_cpu_s),
        "cpu_ratio": round(per_cpu_s / bare_per_cpu_s, 3),
    }
    print(f"gateway {result['gateway_chunks_per_s']}, bare {result['bare_chunks_per_s']} chunks/s")
    pause_ms = 1000 * args.streams / (median(rates) / 2)
    for kind in ("gateway", "bare"):
        with serving(kind, pause_ms, chunk) as server:
            late = lateness_ms(server, args.streams, args.tokens)
        result[f"{kind}_late_p50_ms"] = round(percentile(late, 0.5), 3)
        result[f"{kind}_late_p99_ms"] = round(percentile(late, 0.99), 3)
        print(f"{kind} at half of the gateway's load: p99 {result[f'{kind}_late_p99_ms']} ms")
    added = result["gateway_late_p99_ms"] - result["bare_late_p99_ms"]
    result["added_p99_ms"] = round(added, 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
