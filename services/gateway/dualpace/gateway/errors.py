"""What a client is told when something is wrong: one exception, one JSON envelope.

The envelope and its words are OpenAI's: `{"error": {"message", "type", "param", "code"}}`, with a
string `code`.
"""

import json
import logging

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


def server_error(message: str, code: str = "internal_error") -> ApiError:
    """Build the 500 for a failure that is not the client's."""
    return ApiError(500, message, kind="server_error", code=code)


def shorten(value: object, limit: int = 200) -> str:
    """Return the value's repr, cut to `limit` characters, for use in a message."""
    # A number of thousands of digits cannot be turned into text by default.
    text = hex(value) if isinstance(value, int) and abs(value) >= 1 << 64 else ascii(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def encode_json(value: object) -> bytes:
    """Return compact UTF-8 JSON. NaN and infinities are our own mistake and raise ValueError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # An unpaired surrogate has no UTF-8; its backslash form is its JSON escape.
    return text.encode("utf-8", "backslashreplace")


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
