"""Puts the gateway together: routes, errors, lifecycle, middleware, one backend, one model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from dualpace.core.clock import Clock, SystemClock
from dualpace.core.errors import SettingsError
from dualpace.gateway.engines.backend import Backend
from dualpace.gateway.errors import (
    ApiError,
    ClientDisconnectedError,
    handle_exception,
    handle_http_exception,
)
from dualpace.gateway.http.access import Access
from dualpace.gateway.http.direct_routes import DirectRoutes, direct_routes
from dualpace.gateway.http.middleware import RequestContext
from dualpace.gateway.http.openapi import STREAMED, request_body
from dualpace.gateway.lifecycle import Lifecycle
from dualpace.gateway.limits.admission import AdmissionQueue
from dualpace.gateway.limits.gcra import Limiter
from dualpace.gateway.limits.guarded import GuardedLimiter
from dualpace.gateway.limits.keys import KeyFile
from dualpace.gateway.limits.memory import MemoryLimiter
from dualpace.gateway.limits.metering import Metering
from dualpace.gateway.limits.redis_store import RedisLimiter
from dualpace.gateway.limits.urgency import objectives_from_text
from dualpace.gateway.protocol.chat import ChatRequest
from dualpace.gateway.protocol.completions import CompletionRequest
from dualpace.gateway.protocol.responses import ResponsesRequest
from dualpace.gateway.routes import health, models, tokens
from dualpace.gateway.routes.chat import chat_completions
from dualpace.gateway.routes.completions import completions
from dualpace.gateway.routes.responses import responses
from dualpace.gateway.serving import Gateway
from dualpace.gateway.settings import GatewaySettings
from dualpace.gateway.telemetry import metric_names as names
from dualpace.gateway.telemetry.metrics import Metrics
from dualpace.gateway.telemetry.tracing_middleware import TracedRequests
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.text.prompts import PromptBuilder
from dualpace.tracing import Tracing


def build_gateway(
    settings: GatewaySettings,
    model: ServedModel,
    backend: Backend,
    clock: Clock | None = None,
    tracing: Tracing | None = None,
) -> Gateway:
    """Return the parts that handlers share. Nothing is started yet. Raises SettingsError."""
    metrics = Metrics(backend, model.names[0])
    admission = AdmissionQueue(
        max_requests=settings.max_waiting_generations,
        max_tokens=settings.max_waiting_tokens,
        refused=lambda: metrics.refused("queue_full"),
    )
    limiter = _limiter(settings, metrics)
    metrics.watch(
        names.WAITING_GENERATIONS, "Without a first token yet.", lambda: admission.num_requests
    )
    metrics.watch(names.WAITING_TOKENS, "Prompt tokens of these.", lambda: admission.num_tokens)
    return Gateway(
        settings=settings,
        model=model,
        lifecycle=Lifecycle(backend),
        prompts=PromptBuilder(model, num_threads=settings.tokenizer_threads),
        keys=None if settings.api_keys_file is None else KeyFile(Path(settings.api_keys_file)),
        metering=Metering(limiter, metrics.refused),
        admission=admission,
        metrics=metrics,
        clock=clock or SystemClock(),
        objectives=objectives_from_text(settings.inference_objectives),
        tracing=tracing,
    )


def _limiter(settings: GatewaySettings, metrics: Metrics) -> Limiter:
    if settings.redis_url is None:
        return MemoryLimiter()
    try:
        shared = RedisLimiter(settings.redis_url)
    except ValueError as error:
        raise SettingsError(f"redis_url: {error}") from None
    limiter = GuardedLimiter(shared, deny_when_down=settings.redis_down == "deny")
    metrics.watch(
        names.LIMITS_DEGRADED, "1 while limits cannot be shared.", lambda: float(limiter.down)
    )
    return limiter


def build_app(gateway: Gateway) -> ASGIApp:
    """Return the ASGI application. Its lifespan starts and stops the backend."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gateway.lifecycle.start()
        yield
        await gateway.lifecycle.stop()
        gateway.prompts.close()
        await gateway.metering.close()

    app = FastAPI(
        title="DualPace",
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_routes(app, gateway)
    app.add_exception_handler(HTTPException, handle_http_exception)
    for kind in (ApiError, ClientDisconnectedError, Exception):
        app.add_exception_handler(kind, handle_exception)
    direct = DirectRoutes(app, direct_routes(app))
    guarded = Access(direct, gateway.keys, lambda: gateway.metrics.refused("no_key"))
    whole = RequestContext(guarded, gateway.metrics, gateway.clock)
    return whole if gateway.tracing is None else TracedRequests(whole, gateway.tracing)


def _add_routes(app: FastAPI, gateway: Gateway) -> None:
    _add_generation_routes(app, gateway)

    @app.get("/v1/models")
    async def list_models() -> Response:
        return models.list_models(gateway)

    @app.get("/v1/models/{model:path}")
    async def show_model(model: str) -> Response:
        return models.one_model(gateway, model)

    @app.head("/livez", include_in_schema=False)
    @app.get("/livez")
    async def live() -> Response:
        return health.live()

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz")
    async def ready() -> Response:
        return health.ready(gateway)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def healthy() -> Response:
        return health.healthy(gateway)

    @app.post("/ping", include_in_schema=False)
    @app.get("/ping")
    async def ping() -> Response:
        return health.healthy(gateway)

    @app.get("/load")
    async def load() -> Response:
        return tokens.load(gateway)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return health.metrics(gateway)

    @app.get("/version")
    async def version() -> Response:
        return health.show_version()


def _add_generation_routes(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes that read their bodies themselves, with limits and errors of their own."""

    @app.post("/v1/chat/completions", openapi_extra=request_body(ChatRequest), responses=STREAMED)
    async def create_chat_completion(request: Request) -> Response:
        return await chat_completions(gateway, request)

    @app.post("/v1/responses", openapi_extra=request_body(ResponsesRequest), responses=STREAMED)
    async def create_response(request: Request) -> Response:
        return await responses(gateway, request)

    @app.post("/tokenize", openapi_extra=request_body(CompletionRequest))
    async def tokenize(request: Request) -> Response:
        return await tokens.tokenize(gateway, request)

    @app.post("/detokenize", openapi_extra=request_body(tokens.DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        return await tokens.detokenize(gateway, request)

    @app.post("/v1/completions", openapi_extra=request_body(CompletionRequest), responses=STREAMED)
    async def create_completion(request: Request) -> Response:
        return await completions(gateway, request)
