"""What a client is told when something is wrong: one exception, one JSON envelope.

The envelope and its words are OpenAI's: `{"error": {"message", "type", "param", "code"}}`, with a
string `code`.
"""

import json
import logging
import math
from json.encoder import encode_basestring

from starlette.requests import Request
from starlette.responses import Response

from dualpace.core.errors import DualPaceError

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 2
"""Clients of the official SDK retry 503 twice within a second unless told to wait."""

CLIENT_CLOSED_REQUEST = 499
"""Never reaches a client; names the outcome in logs and metrics."""


class ApiError(DualPaceError):
    """An answer other than success. `param` names the field at fault, where there is one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}

    def envelope(self) -> dict[str, object]:
        """Return the body that a client gets."""
        fields = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": fields}


class ClientDisconnectedError(DualPaceError):
    """The client went away before it had its answer."""


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Build the 400 for a field that cannot be accepted; its message begins with the name."""
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code=code)


def context_length_exceeded(param: str, message: str) -> ApiError:
    """Build the 400 for a request that does not fit into the model's context."""
    return invalid(param, message, "context_length_exceeded")


def model_not_found(name: str) -> ApiError:
    """Build the 404 for a model that is not served here."""
    message = f"model: {shorten(name)} is not served here; GET /v1/models lists what is"
    return ApiError(404, message, param="model", code="model_not_found")


def unavailable(reason: str) -> ApiError:
    """Build the 503 for a node that cannot generate now but may soon."""
    return ApiError(
        503,
        reason,
        kind="server_error",
        code="service_unavailable",
        headers={"Retry-After": str(_RETRY_AFTER_S)},
    )


def overloaded(reason: str) -> ApiError:
    """Build the 503 for a node on which too much waits."""
    headers = {"Retry-After": str(_RETRY_AFTER_S)}
    return ApiError(503, reason, kind="server_error", code="overloaded", headers=headers)


def unauthorized() -> ApiError:
    """Build the 401 for a request without a key that is known; it tells nothing of what it had."""
    return ApiError(
        401,
        "A valid API key is needed: Authorization: Bearer <key>.",
        kind="authentication_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def rate_limited(message: str, retry_after_s: float | None) -> ApiError:
    """Build the 429 for a client that has used too much; None: waiting does not help."""
    if retry_after_s is None:
        headers = {"x-should-retry": "false"}
    else:
        headers = {
            "Retry-After": str(max(1, math.ceil(retry_after_s))),
            "retry-after-ms": str(max(1, math.ceil(retry_after_s * 1000))),
        }
    return ApiError(
        429, message, kind="rate_limit_error", code="rate_limit_exceeded", headers=headers
    )


def timed_out(message: str) -> ApiError:
    """Build the 504 for a request that took longer than it may."""
    headers = {"x-should-retry": "false"}
    return ApiError(504, message, kind="server_error", code="deadline_exceeded", headers=headers)


def body_timed_out(seconds: float) -> ApiError:
    """Build the 408 for a body that does not come."""
    message = f"The request was not complete after {seconds:g} s."
    return ApiError(408, message, code="request_timeout", headers={"Connection": "close"})


def server_error(message: str, code: str = "internal_error") -> ApiError:
    """Build the 500 for a failure that is not the client's."""
    return ApiError(500, message, kind="server_error", code=code)


def shorten(value: object, limit: int = 200) -> str:
    """Return the value's repr, cut to `limit` characters, for use in a message."""
    # A number of thousands of digits cannot be turned into text by default.
    text = hex(value) if isinstance(value, int) and abs(value) >= 1 << 64 else ascii(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
"""Made once: json.dumps would make one for every call."""


def encode_json(value: object) -> bytes:
    """Return compact UTF-8 JSON. NaN and infinities are our own mistake and raise ValueError."""
    text = _ENCODER.encode(value)
    # An unpaired surrogate has no UTF-8; its backslash form is its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def encode_text(text: str) -> bytes:
    """Return a string as JSON, as `encode_json` does."""
    return encode_basestring(text).encode("utf-8", "backslashreplace")


def json_response(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(encode_json(value), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """Return an error as a response."""
    return json_response(error.envelope(), error.status, error.headers)


def from_exception(error: Exception) -> ApiError:
    """Turn any exception into what the client may see of it; the log has the rest."""
    if isinstance(error, ApiError):
        return error
    log.error("request failed", exc_info=error)
    return server_error("The server had an internal error; its log tells more.")


async def handle_exception(request: Request, error: Exception) -> Response:
    """Answer a request whose handler raised."""
    del request
    if isinstance(error, ClientDisconnectedError):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return error_response(from_exception(error))


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router itself refuses: an unknown route, a wrong method."""
    status = getattr(error, "status_code", 500)
    if status == 404:
        message = "There is no such route."
        code = "route_not_found"
    elif status == 405:
        message = f"The method {shorten(request.method, 20)} is not allowed here."
        code = "method_not_allowed"
    else:
        message, code = "The request could not be handled.", "bad_request"
    headers = dict(getattr(error, "headers", None) or {})
    return error_response(ApiError(status, message, code=code, headers=headers))
