"""Fields that generation routes share."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dualpace.core.request import MAX_LOGPROBS, MAX_PENALTY, MAX_PRIORITY, MIN_PRIORITY
from dualpace.gateway.protocol.fields import (
    AllowedTokensField,
    Flag,
    LogitBiasField,
    OnFlag,
    Penalty,
    StopStringsField,
    StrictModel,
    TokenIdsField,
    Whole,
    or_default,
)
from dualpace.gateway.protocol.outputs import ResponseFormat, StructuredOutputs

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think."""


class StreamOptions(StrictModel):
    """How a stream reports usage."""

    include_usage: Flag = False
    continuous_usage_stats: Flag = False


class CommonRequest(StrictModel):
    """Fields that all generation routes share. None means: use the model's default."""

    model: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: Penalty = Field(default=0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    frequency_penalty: Penalty = Field(default=0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    repetition_penalty: float | None = Field(default=None, gt=0)
    logit_bias: LogitBiasField = ()
    allowed_token_ids: AllowedTokensField = ()
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    stop: StopStringsField = ()
    stop_token_ids: TokenIdsField = ()
    include_stop_str_in_output: Flag = False
    ignore_eos: Flag = False
    min_tokens: Whole = Field(default=0, ge=0)
    skip_special_tokens: OnFlag = True
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1)
    priority: Whole = Field(default=0, ge=MIN_PRIORITY, le=MAX_PRIORITY)
    stream: Flag = False
    user: str | None = None
    request_id: str | None = Field(default=None, min_length=1, max_length=128, pattern=r"^[!-~]+$")
    x_dualpace: Flag = False


class GenerationRequest(CommonRequest):
    """Fields that chat and plain completions share."""

    max_tokens: int | None = Field(default=None, ge=1)
    n: Annotated[int, BeforeValidator(or_default(1), json_schema_input_type=int | None)] = Field(
        default=1, ge=1
    )
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: Flag = False
    return_tokens_as_token_ids: Flag = False
