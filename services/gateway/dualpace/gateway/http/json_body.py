"""From the bytes of a request to a JSON object, with limits; it knows nothing of fields.

Python's parser accepts NaN and Infinity. They are let through here, so that field validation can
name the field.
"""

import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from dualpace.gateway.errors import ApiError, ClientDisconnectedError, invalid, shorten

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the request's JSON object. Raises ApiError 400, 413, 415, ClientDisconnectedError."""
    _check_content_type(request.headers.get("content-type"))
    return parse_json_object(await _read_body(request, max_bytes))


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a body that must be one JSON object. Raises ApiError 400."""
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise _bad_json("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except ValueError:
        raise _bad_json("it has a number of too many digits") from None
    if not isinstance(value, dict):
        raise _bad_json("an object is needed at the top")
    if _SURROGATE_ESCAPE.search(body):
        _refuse_unpaired_surrogates(value)
    return value


def _check_content_type(header: str | None) -> None:
    """Accept JSON, and clients that do not say what they send."""
    if header is None:
        return
    media_type = header.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            415,
            f"Content-Type: {shorten(media_type, 80)} is not accepted; send application/json",
            code="unsupported_media_type",
            headers={"Connection": "close"},
        )


async def _read_body(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise ClientDisconnectedError("the client left while sending its request") from None
    return bytes(body)


def _refuse_unpaired_surrogates(fields: dict[str, Any]) -> None:
    """Half a UTF-16 pair, written as an escape, is legal JSON but no text a tokenizer takes."""
    for name, value in fields.items():
        try:
            json.dumps((name, value), ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            param = name.encode("utf-8", "backslashreplace").decode("utf-8")[:100]
            raise invalid(param, "has an unpaired surrogate, which is not text") from None


def _bad_json(why: str) -> ApiError:
    return invalid(None, f"The request body is not acceptable JSON: {why}.", "invalid_json")


def _too_large(max_bytes: int) -> ApiError:
    # The rest of the body is not read, so the connection cannot be used again.
    return ApiError(
        413,
        f"The request body is larger than {max_bytes} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )
