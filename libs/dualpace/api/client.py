"""Clients of a gateway's gRPC port, for threads and for event loops.

    with Client("localhost:9000", key="sk-…") as client:
        for part in client.generate(pb.GenerateRequest(text="The capital of France is")):
            print(part.text, end="")

Closing the iterator, or leaving its loop by an exception, ends the generation on the engines.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, cast

import grpc
import grpc.aio

from dualpace.api import methods
from dualpace.api.v1 import inference_pb2 as pb

Metadata = tuple[tuple[str, str], ...]
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


class ApiFailedError(Exception):
    """A call failed. `status` is gRPC's; `code` and `param` are those of the HTTP API."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(error.details() or "the call failed")
        self.status = error.code()
        metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
        trailing = dict(metadata)
        self.code = _text(trailing.get(methods.CODE_KEY))
        self.param = _text(trailing.get(methods.PARAM_KEY))
        retry_ms = _text(trailing.get(methods.RETRY_KEY))
        self.retry_after_s = None if retry_ms is None else int(retry_ms) / 1000


class Client:
    """For threads. Use it as a context manager, or close it."""

    def __init__(self, address: str, *, key: str | None = None, timeout_s: float | None = None):
        """address: host:port, without TLS. timeout_s: of each call, its whole stream included."""
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._metadata = _metadata(key)
        self._timeout_s = timeout_s
        self._generate = self._channel.unary_stream(
            methods.GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        self._tokenize = self._channel.unary_unary(
            methods.TOKENIZE,
            request_serializer=pb.TokenizeRequest.SerializeToString,
            response_deserializer=pb.TokenizeResponse.FromString,
        )
        self._model_info = self._channel.unary_unary(
            methods.MODEL_INFO,
            request_serializer=pb.ModelInfoRequest.SerializeToString,
            response_deserializer=pb.ModelInfoResponse.FromString,
        )

    def generate(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateResponse]:
        """Yield parts of the answer as they come. Raises ApiFailedError."""
        call = self._generate(request, metadata=self._metadata, timeout=self._timeout_s)
        try:
            yield from call
        except grpc.RpcError as error:
            raise ApiFailedError(error) from None
        finally:
            call.cancel()

    def tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Return the tokens of a prompt. Raises ApiFailedError."""
        with _failures():
            return self._tokenize(request, metadata=self._metadata, timeout=self._timeout_s)

    def model_info(self) -> pb.ModelInfoResponse:
        """Return what is served. Raises ApiFailedError."""
        with _failures():
            return self._model_info(
                pb.ModelInfoRequest(), metadata=self._metadata, timeout=self._timeout_s
            )

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """For event loops. Use it as an asynchronous context manager, or close it."""

    def __init__(self, address: str, *, key: str | None = None, timeout_s: float | None = None):
        """address: host:port, without TLS. timeout_s: of each call, its whole stream included."""
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._metadata = _metadata(key)
        self._timeout_s = timeout_s
        self._generate = self._channel.unary_stream(
            methods.GENERATE,
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        self._tokenize = self._channel.unary_unary(
            methods.TOKENIZE,
            request_serializer=pb.TokenizeRequest.SerializeToString,
            response_deserializer=pb.TokenizeResponse.FromString,
        )
        self._model_info = self._channel.unary_unary(
            methods.MODEL_INFO,
            request_serializer=pb.ModelInfoRequest.SerializeToString,
            response_deserializer=pb.ModelInfoResponse.FromString,
        )

    async def generate(self, request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
        """Yield parts of the answer as they come. Raises ApiFailedError."""
        call = self._generate(request, metadata=self._metadata, timeout=self._timeout_s)
        try:
            async for part in call:
                yield part
        except grpc.RpcError as error:
            raise ApiFailedError(error) from None
        finally:
            call.cancel()

    async def tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Return the tokens of a prompt. Raises ApiFailedError."""
        with _failures():
            return await self._tokenize(request, metadata=self._metadata, timeout=self._timeout_s)

    async def model_info(self) -> pb.ModelInfoResponse:
        """Return what is served. Raises ApiFailedError."""
        with _failures():
            return await self._model_info(
                pb.ModelInfoRequest(), metadata=self._metadata, timeout=self._timeout_s
            )

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise ApiFailedError(error) from None


def _metadata(key: str | None) -> Metadata:
    return () if key is None else (("authorization", f"Bearer {key}"),)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
