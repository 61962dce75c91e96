"""Field types that requests share, and the settings common to their models.

Validation is strict: true is not 1, "1" is not 1, 1.0 is not a whole number. Lists stop at their
first fault, so that a long list of faults costs no more than a short one.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from dualpace.core.request import (
    MAX_ALLOWED_TOKENS,
    MAX_BIASED_TOKENS,
    MAX_LOGIT_BIAS,
)
from dualpace.gateway.errors import shorten

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 4096
"""Of all stop strings together; the automaton that finds them has a state for each."""

STRICT = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class StrictModel(BaseModel):
    """Base of everything a client sends."""

    model_config = STRICT


def fault(message: str, kind: str = "invalid_value") -> PydanticCustomError:
    """Build an error that a field validator raises."""
    # The message is data, not a format string.
    return PydanticCustomError(kind, "{reason}", {"reason": message})


def _stop_strings(value: object) -> object:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(
        isinstance(s, str) for s in strings[: MAX_STOP_STRINGS + 1]
    ):
        raise fault("must be a string or a list of strings", "invalid_type")
    if len(strings) > MAX_STOP_STRINGS:
        raise fault(f"at most {MAX_STOP_STRINGS} stop strings are allowed")
    if not all(strings):
        raise fault("a stop string must not be empty")
    if sum(map(len, strings)) > MAX_STOP_CHARACTERS:
        raise fault(f"stop strings may have {MAX_STOP_CHARACTERS} characters together")
    return tuple(strings)


StopStringsField = Annotated[
    tuple[str, ...], BeforeValidator(_stop_strings, json_schema_input_type=str | list[str] | None)
]


def whole_numbers(value: object, what: str) -> tuple[int, ...]:
    """Return a list of whole numbers as a tuple; `what` names it in the error."""
    # A check of types by hand: a prompt of token ids may have a million of them.
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise fault(f"must be {what}", "invalid_type")
    return tuple(value)


def _token_ids(value: object) -> object:
    return () if value is None else whole_numbers(value, "a list of token ids")


TokenIdsField = Annotated[
    tuple[int, ...], BeforeValidator(_token_ids, json_schema_input_type=list[int] | None)
]


_DECIMAL = re.compile(r"-?[0-9]{1,19}")


def _logit_bias(value: object) -> object:
    """Return biases by token id: {"50256": -100} as ((50256, -100.0),)."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise fault("must be an object of token ids and numbers", "invalid_type")
    if len(value) > MAX_BIASED_TOKENS:
        raise fault(f"at most {MAX_BIASED_TOKENS} tokens can have a bias")
    return tuple(_bias(token_id, bias) for token_id, bias in value.items())


def _bias(token_id: object, bias: object) -> tuple[int, float]:
    if not isinstance(token_id, str) or not _DECIMAL.fullmatch(token_id):
        raise fault(f"{shorten(token_id, 40)} is not a token id, written in decimal")
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise fault(f"the bias of token {token_id} must be a number", "invalid_type")
    if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
        raise fault(f"the bias of token {token_id} must be in -100..100 (got {shorten(bias, 40)})")
    return int(token_id), float(bias)


LogitBiasField = Annotated[
    tuple[tuple[int, float], ...],
    BeforeValidator(_logit_bias, json_schema_input_type=dict[str, float] | None),
]


def _allowed_token_ids(value: object) -> object:
    if value is None:
        return ()
    ids = whole_numbers(value, "a list of token ids")
    if not ids:
        raise fault("must not be empty: nothing could be generated")
    if len(ids) > MAX_ALLOWED_TOKENS:
        raise fault(f"at most {MAX_ALLOWED_TOKENS} tokens can be listed")
    return tuple(dict.fromkeys(ids))


AllowedTokensField = Annotated[
    tuple[int, ...], BeforeValidator(_allowed_token_ids, json_schema_input_type=list[int] | None)
]


def or_default(default: object) -> Callable[[Any], Any]:
    """Return a validator under which null means the default, as an absent field does."""
    return lambda value: default if value is None else value


Flag = Annotated[bool, BeforeValidator(or_default(False), json_schema_input_type=bool | None)]

OnFlag = Annotated[bool, BeforeValidator(or_default(True), json_schema_input_type=bool | None)]

Penalty = Annotated[float, BeforeValidator(or_default(0.0), json_schema_input_type=float | None)]

Whole = Annotated[int, BeforeValidator(or_default(0), json_schema_input_type=int | None)]
