"""Servers to measure: the gateway in front of a stub engine, and a bare Starlette application.

    servers.py gateway|bare <port> <pause ms> <chunk in hexadecimal>

The stub makes as many tokens as asked for, one every `pause ms` (0: as fast as they are taken).
The bare application sends the gateway's own bytes, recorded once, chunk by chunk. Both note on
CLOCK_MONOTONIC when each chunk was made; `GET /made` returns and forgets these times.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from dualpace.checkpoint import fetch_demo_model
from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import Engine, FinishReason
from dualpace.gateway.engines.backend import (
    EngineState,
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationParams,
    NodeInfo,
    ScoredPrompt,
)
from dualpace.gateway.garbage import settle_garbage_collector
from dualpace.gateway.http.app import build_app, build_gateway
from dualpace.gateway.http.server import uvicorn_config
from dualpace.gateway.settings import GatewaySettings
from dualpace.gateway.text.model_loading import load_model

TOKEN = 1000
MADE: dict[str, list[float]] = {}
"""By stream, when each of its chunks was made."""


class StubGeneration:
    """Tokens at a pace, with whatever was asked to be told of them."""

    def __init__(self, name: str, first: int, params: GenerationParams, pause_s: float) -> None:
        self._name = name
        self._first = first
        self._params = params
        self._pause_s = pause_s

    def cancel(self) -> None:
        """Do nothing: it ends when it is not read any more."""

    async def __aiter__(self) -> AsyncIterator[Sequence[GenerationEvent]]:
        """Yield the prompt's scores if asked for, tokens, then the end."""
        made = MADE.setdefault(self._name, [])
        params = self._params
        if params.prompt_logprobs is not None:
            score = _score(params.prompt_logprobs, rank=1)
            yield [ScoredPrompt(1, (score,) * (self._first - 1))]
        logprobs = params.sampling.logprobs
        told = None if logprobs is None else _score(logprobs)
        async for _ in paced(params.max_tokens, self._pause_s):
            made.append(time.monotonic())
            yield [GeneratedToken(self._first + len(made), TOKEN, Engine.GPU, told)]
        yield [GenerationEnd(FinishReason.LENGTH)]


def _score(alternatives: int, rank: int | None = None) -> TokenLogprobs:
    """Return made-up log-probabilities of the stub's token and of those that follow it."""
    return TokenLogprobs(-0.5, tuple((TOKEN + i, -0.5 - i) for i in range(alternatives)), rank)


class StubBackend:
    """A node of stub generations, named by the seeds of their requests."""

    info = NodeInfo(max_model_len=1 << 20, vocab_size=49152, max_request_bytes=1 << 16)

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    async def start(self) -> None:
        """Be ready."""

    async def stop(self) -> None:
        """Be gone."""

    async def failed(self) -> Exception:
        """Wait for ever."""
        await asyncio.Event().wait()
        raise AssertionError

    def engines(self) -> dict[Engine, EngineState]:
        """Return engines without numbers."""
        return {engine: EngineState(connected=True, heartbeat_age_s=0.0) for engine in Engine}

    def unready_reason(self) -> None:
        """Return nothing: it is always ready."""

    def generate(self, prompt: tuple[int, ...], params: GenerationParams) -> StubGeneration:
        """Begin."""
        name = str(params.sampling.seed)
        return StubGeneration(name, len(prompt), params, self._pause_s)


async def paced(count: int, pause_s: float) -> AsyncIterator[int]:
    """Yield `count` times, as fast as possible or at a fixed rate that does not drift."""
    begin = asyncio.get_running_loop().time()
    for index in range(count):
        if pause_s:
            due = begin + index * pause_s - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, due))
        else:
            await asyncio.sleep(0)
        yield index


async def made(_: Request) -> JSONResponse:
    """Return when chunks were made, and forget it."""
    answer = JSONResponse(dict(MADE))
    MADE.clear()
    return answer


def gateway_app(pause_s: float) -> Any:
    """Return the gateway, with /made beside it."""
    model = load_model(fetch_demo_model(), ("demo",))
    settings = GatewaySettings(
        model="-", run_dir=tempfile.gettempdir(), max_waiting_generations=1 << 20
    )
    app = build_app(build_gateway(settings, model, StubBackend(pause_s)))

    async def with_times(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/made":
            await (await made(Request(scope)))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return with_times


def bare_app(chunk: bytes, pause_s: float) -> Starlette:
    """Return an application that sends a chunk over and over."""

    async def complete(request: Request) -> StreamingResponse:
        body = json.loads(await request.body())
        times = MADE.setdefault(str(body["seed"]), [])

        async def stream() -> AsyncIterator[bytes]:
            async for _ in paced(body["max_tokens"], pause_s):
                times.append(time.monotonic())
                yield chunk
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/made", made),
            Route("/readyz", made),
        ]
    )


def main() -> None:
    """Serve on one core."""
    kind, port, pause_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if kind == "gateway":
        app = gateway_app(pause_ms / 1000)
    else:
        app = bare_app(bytes.fromhex(sys.argv[4]), pause_ms / 1000)
    settle_garbage_collector()  # as the gateway's own entry point does
    uvicorn.Server(uvicorn_config(app, port=port)).run()


if __name__ == "__main__":
    main()
