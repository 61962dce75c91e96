"""The gRPC front: `dualpace.v1.Inference`, with health and reflection.

Requests are turned into those of the HTTP dialect, so that validation, limits and meaning are one;
only how answers look is its own.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dualpace.api import methods
from dualpace.api.v1 import inference_pb2 as pb
from dualpace.core.errors import SettingsError
from dualpace.gateway.choices import prompt_lengths
from dualpace.gateway.errors import ApiError, from_exception, unauthorized
from dualpace.gateway.grpc.messages import Answer, chat_body, completion_body, is_chat
from dualpace.gateway.http.access import bearer_token
from dualpace.gateway.limits.deadline import Deadlines
from dualpace.gateway.limits.keys import ANYBODY, Client
from dualpace.gateway.limits.urgency import urgency_of
from dualpace.gateway.preparing import Preparation
from dualpace.gateway.prompt_tokens import chat_tokens, completion_tokens
from dualpace.gateway.protocol.validation import parse_chat, parse_completion
from dualpace.gateway.serving import Gateway, Terms, generate
from dualpace.gateway.telemetry.observer import RequestObserver
from dualpace.gateway.telemetry.request_trace import RequestTrace, request_trace, traced
from dualpace.tracing import names

log = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

_STATUSES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class InferenceService:
    """The methods of the service."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Generate; the call ends with a status that says what went wrong."""
        operation = "chat" if is_chat(request) else "text_completion"
        with self._traced(operation, context) as trace:
            try:
                async with aclosing(self._generate(request, context)) as parts:
                    async for part in parts:
                        yield part
            except Exception as error:  # noqa: BLE001 - from_exception logs what is not for clients
                told = from_exception(error)
                if trace is not None and told.status >= 500:
                    trace.fail(_STATUSES.get(told.status, grpc.StatusCode.INTERNAL).name)
                await _abort(context, told)

    async def tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Tokenize."""
        gateway = self._gateway
        try:
            await self._admit(context)
            model = {"model": request.model} if request.model else {}
            if request.WhichOneof("prompt") == "conversation":
                body = model | chat_body(pb.GenerateRequest(conversation=request.conversation))
                token_ids = await chat_tokens(gateway, parse_chat(body))
            else:
                completion = parse_completion(model | {"prompt": request.text})
                token_ids = await completion_tokens(gateway, completion)
            limit = gateway.lifecycle.node_info().max_model_len
            return pb.TokenizeResponse(token_ids=token_ids, max_model_len=limit)
        except Exception as error:  # noqa: BLE001 - as above
            await _abort(context, from_exception(error))

    async def model_info(
        self, request: pb.ModelInfoRequest, context: Context
    ) -> pb.ModelInfoResponse:
        """Say what is served."""
        del request
        gateway = self._gateway
        try:
            self._client(context)
            info = gateway.lifecycle.node_info()
        except Exception as error:  # noqa: BLE001 - as above
            await _abort(context, from_exception(error))
        return pb.ModelInfoResponse(
            names=gateway.model.names,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            end_token_ids=gateway.model.eos_token_ids,
        )

    async def _generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        gateway = self._gateway
        arrival_s = gateway.clock.now()
        with gateway.lifecycle.running():
            meter = gateway.metering.meter(await self._admit(context), {})
            urgency = urgency_of(_text_metadata(context), gateway.objectives)
            preparation = Preparation(gateway, _waited, urgency)
            if is_chat(request):
                parsed = parse_chat(chat_body(request))
                name = gateway.served_name(parsed.model)
                choices = await preparation.chat(parsed)
            else:
                completion = parse_completion(completion_body(request))
                name = gateway.served_name(completion.model)
                choices = await preparation.completion(completion)
            left = context.time_remaining()
            terms = Terms(
                meter=meter,
                deadlines=Deadlines(gateway.settings.first_token_timeout_s, left or None),
            )
            observer = RequestObserver(
                gateway.metrics, gateway.clock, arrival_s, prompt_lengths(choices), urgency
            )
            trace = request_trace()
            if trace is not None:
                trace.prepared(name, choices, stream=True)
            answer = Answer(choices)
            parts = generate(gateway, choices, terms, observer, answer.part)
            async with aclosing(parts) as batches:
                async for batch in batches:
                    for part in batch:
                        yield part

    @contextmanager
    def _traced(self, operation: str, context: Context) -> Iterator[RequestTrace | None]:
        """Trace a call, where traces are wanted. Each call has a task of its own."""
        tracing = self._gateway.tracing
        if tracing is None:
            yield None
            return
        with traced(tracing, operation, _text_metadata(context)) as trace:
            trace.note(
                {
                    names.RPC_SYSTEM: "grpc",
                    names.RPC_SERVICE: methods.SERVICE,
                    names.RPC_METHOD: "Generate",
                }
            )
            yield trace

    async def _admit(self, context: Context) -> Client:
        """Return who asks, charged for the request. Raises ApiError 401, 429, 503."""
        client = self._client(context)
        self._gateway.lifecycle.check_ready()
        await self._gateway.metering.meter(client, {}).request()
        return client

    def _client(self, context: Context) -> Client:
        keys = self._gateway.keys
        if keys is None:
            return ANYBODY
        token = bearer_token(_text_metadata(context).get("authorization", "").encode())
        client = None if token is None else keys.client(token)
        if client is None:
            self._gateway.metrics.refused("no_key")
            raise unauthorized()
        return client


class HealthService(health_pb2_grpc.HealthServicer):
    """grpc.health.v1: `liveness` says that the process answers, everything else readiness."""

    _READINESS = ("", "readiness", methods.SERVICE)

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Check(  # noqa: N802 - gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Answer once."""
        status = self._status(request.service)
        if status == "SERVICE_UNKNOWN":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Answer now and whenever it changes, for as long as the client listens."""
        del context
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(0.2)

    def _status(self, service: str) -> str:
        if service == "liveness":
            return "SERVING"
        if service not in self._READINESS:
            return "SERVICE_UNKNOWN"
        if self._gateway.lifecycle.unready_reason() is None:
            return "SERVING"
        return "NOT_SERVING"


@asynccontextmanager
async def grpc_server(gateway: Gateway) -> AsyncIterator[int | None]:
    """Serve beside whatever runs in the context; yields the port, None if there is to be none.

    Raises SettingsError if the address cannot be had.
    """
    settings = gateway.settings
    if settings.grpc_port is None:
        yield None
        return
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.so_reuseport", 0),
            # Clients that are gone without a word are noticed.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        ]
    )
    server.add_generic_rpc_handlers((inference_handler(InferenceService(gateway)),))
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(gateway), server)
    reflection.enable_server_reflection(
        (methods.SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME), server
    )
    port = _bind(server, settings.host, settings.grpc_port)
    await server.start()
    log.info("gRPC at %s:%d", settings.host, port)
    try:
        yield port
    finally:
        await server.stop(_CLOSE_GRACE_S)


_CLOSE_GRACE_S = 2.0
"""For streams that have been told their end to write it."""


def inference_handler(service: InferenceService) -> grpc.GenericRpcHandler:
    """Return the handler of the service's methods."""
    return grpc.method_handlers_generic_handler(
        methods.SERVICE,
        {
            "Generate": grpc.unary_stream_rpc_method_handler(
                service.generate,
                request_deserializer=pb.GenerateRequest.FromString,
                response_serializer=pb.GenerateResponse.SerializeToString,
            ),
            "Tokenize": grpc.unary_unary_rpc_method_handler(
                service.tokenize,
                request_deserializer=pb.TokenizeRequest.FromString,
                response_serializer=pb.TokenizeResponse.SerializeToString,
            ),
            "ModelInfo": grpc.unary_unary_rpc_method_handler(
                service.model_info,
                request_deserializer=pb.ModelInfoRequest.FromString,
                response_serializer=pb.ModelInfoResponse.SerializeToString,
            ),
        },
    )


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    try:
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise SettingsError(f"grpc_port: cannot listen on {host}:{port}: {error}") from None


async def _waited(work: Coroutine[Any, Any, T]) -> T:
    """Await work; a call whose client leaves is cancelled by gRPC itself."""
    return await work


def _text_metadata(context: Context) -> dict[str, str]:
    """Return what the client sent beside its message, binary values left out."""
    sent = cast("Iterable[tuple[str, str | bytes]]", context.invocation_metadata() or ())
    return {key: value for key, value in sent if isinstance(value, str)}


async def _abort(context: Context, error: ApiError) -> NoReturn:
    metadata = [(methods.CODE_KEY, error.code or "")]
    if error.param is not None:
        metadata.append((methods.PARAM_KEY, error.param.encode("ascii", "replace").decode()))
    if "Retry-After" in error.headers:
        retry_ms = error.headers.get("retry-after-ms", f"{error.headers['Retry-After']}000")
        metadata.append((methods.RETRY_KEY, retry_ms))
    status = _STATUSES.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(status, error.message, tuple(metadata))
