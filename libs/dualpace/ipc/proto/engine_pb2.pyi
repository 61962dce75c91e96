from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "adjustments")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADJUSTMENTS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    logprobs: int
    adjustments: LogitAdjustments
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., logprobs: _Optional[int] = ..., adjustments: _Optional[_Union[LogitAdjustments, _Mapping]] = ...) -> None: ...

class LogitAdjustments(_message.Message):
    __slots__ = ("presence_penalty", "frequency_penalty", "repetition_penalty", "biased_token_ids", "biases", "allowed_token_ids", "min_tokens", "grammar")
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIASED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    biased_token_ids: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_tokens: int
    grammar: str
    def __init__(self, presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., biased_token_ids: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., min_tokens: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("request_id", "gateway_id", "prompt_tokens", "max_tokens", "stop_token_ids", "sampling", "arrival_s", "priority", "prompt_logprobs", "trace", "first_token_target_s", "token_target_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    gateway_id: int
    prompt_tokens: int
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    arrival_s: float
    priority: int
    prompt_logprobs: int
    trace: bytes
    first_token_target_s: float
    token_target_s: float
    def __init__(self, request_id: _Optional[int] = ..., gateway_id: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., arrival_s: _Optional[float] = ..., priority: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., trace: _Optional[bytes] = ..., first_token_target_s: _Optional[float] = ..., token_target_s: _Optional[float] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("gateway_id", "protocol")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    gateway_id: int
    protocol: int
    def __init__(self, gateway_id: _Optional[int] = ..., protocol: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request", "prompt", "generated")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    request: Request
    prompt: _containers.RepeatedScalarFieldContainer[int]
    generated: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[_Union[Request, _Mapping]] = ..., prompt: _Optional[_Iterable[int]] = ..., generated: _Optional[_Iterable[int]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Live(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("request_id", "next_position", "device", "serial")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    next_position: int
    device: int
    serial: int
    def __init__(self, request_id: _Optional[int] = ..., next_position: _Optional[int] = ..., device: _Optional[int] = ..., serial: _Optional[int] = ...) -> None: ...

class GatewayMessage(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "live", "ask")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    submit: Submit
    cancel: Cancel
    live: Live
    ask: Ask
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., live: _Optional[_Union[Live, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ...) -> None: ...

class EngineWelcome(_message.Message):
    __slots__ = ("protocol", "engine", "model_fingerprint", "max_model_len", "vocab_size", "max_request_bytes", "incarnation")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    engine: int
    model_fingerprint: bytes
    max_model_len: int
    vocab_size: int
    max_request_bytes: int
    incarnation: int
    def __init__(self, protocol: _Optional[int] = ..., engine: _Optional[int] = ..., model_fingerprint: _Optional[bytes] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class AlternativeToken(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("chosen", "top", "rank")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    chosen: float
    top: _containers.RepeatedCompositeFieldContainer[AlternativeToken]
    rank: int
    def __init__(self, chosen: _Optional[float] = ..., top: _Optional[_Iterable[_Union[AlternativeToken, _Mapping]]] = ..., rank: _Optional[int] = ...) -> None: ...

class TokenEvent(_message.Message):
    __slots__ = ("request_id", "position", "token_id", "logprobs", "repeat", "assisted")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    ASSISTED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    position: int
    token_id: int
    logprobs: TokenLogprobs
    repeat: bool
    assisted: bool
    def __init__(self, request_id: _Optional[int] = ..., position: _Optional[int] = ..., token_id: _Optional[int] = ..., logprobs: _Optional[_Union[TokenLogprobs, _Mapping]] = ..., repeat: _Optional[bool] = ..., assisted: _Optional[bool] = ...) -> None: ...

class FinishEvent(_message.Message):
    __slots__ = ("request_id", "end_position", "reason", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    END_POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    end_position: int
    reason: int
    message: str
    def __init__(self, request_id: _Optional[int] = ..., end_position: _Optional[int] = ..., reason: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("request_id", "start", "tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    start: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, request_id: _Optional[int] = ..., start: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class StartEvent(_message.Message):
    __slots__ = ("request_id", "waited_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    waited_s: float
    def __init__(self, request_id: _Optional[int] = ..., waited_s: _Optional[float] = ...) -> None: ...

class Ownership(_message.Message):
    __slots__ = ("request_id", "owned", "serial")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owned: bool
    serial: int
    def __init__(self, request_id: _Optional[int] = ..., owned: _Optional[bool] = ..., serial: _Optional[int] = ...) -> None: ...

class EngineEvent(_message.Message):
    __slots__ = ("token", "finish", "prompt_logprobs", "start", "ownership")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_FIELD_NUMBER: _ClassVar[int]
    token: TokenEvent
    finish: FinishEvent
    prompt_logprobs: PromptLogprobs
    start: StartEvent
    ownership: Ownership
    def __init__(self, token: _Optional[_Union[TokenEvent, _Mapping]] = ..., finish: _Optional[_Union[FinishEvent, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., start: _Optional[_Union[StartEvent, _Mapping]] = ..., ownership: _Optional[_Union[Ownership, _Mapping]] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("gauges",)
    class GaugesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    gauges: _containers.ScalarMap[str, float]
    def __init__(self, gauges: _Optional[_Mapping[str, float]] = ...) -> None: ...

class EngineMessage(_message.Message):
    __slots__ = ("welcome", "events", "status")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    welcome: EngineWelcome
    events: _containers.RepeatedCompositeFieldContainer[EngineEvent]
    status: EngineStatus
    def __init__(self, welcome: _Optional[_Union[EngineWelcome, _Mapping]] = ..., events: _Optional[_Iterable[_Union[EngineEvent, _Mapping]]] = ..., status: _Optional[_Union[EngineStatus, _Mapping]] = ...) -> None: ...

class HandoffHello(_message.Message):
    __slots__ = ("protocol", "arena_generation", "device")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ARENA_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    arena_generation: int
    device: int
    def __init__(self, protocol: _Optional[int] = ..., arena_generation: _Optional[int] = ..., device: _Optional[int] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("request_id", "num_tokens", "grammar")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    num_tokens: int
    grammar: str
    def __init__(self, request_id: _Optional[int] = ..., num_tokens: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("request", "num_tokens", "return_at")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_AT_FIELD_NUMBER: _ClassVar[int]
    request: Request
    num_tokens: int
    return_at: int
    def __init__(self, request: _Optional[_Union[Request, _Mapping]] = ..., num_tokens: _Optional[int] = ..., return_at: _Optional[int] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HandoffCommand(_message.Message):
    __slots__ = ("reserve", "commit", "recall", "release", "cancel", "begin")
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    reserve: Reserve
    commit: Commit
    recall: Recall
    release: Release
    cancel: Cancel
    begin: Begin
    def __init__(self, reserve: _Optional[_Union[Reserve, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ...) -> None: ...

class HandoffRequest(_message.Message):
    __slots__ = ("hello", "commands")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    hello: HandoffHello
    commands: _containers.RepeatedCompositeFieldContainer[HandoffCommand]
    def __init__(self, hello: _Optional[_Union[HandoffHello, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[HandoffCommand, _Mapping]]] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("request_id", "slot", "blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    slot: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., slot: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    reason: str
    def __init__(self, request_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("request_id", "cause", "num_tokens", "tokens", "blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    cause: int
    num_tokens: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., cause: _Optional[int] = ..., num_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("total_blocks", "free_blocks", "free_slots", "running")
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    total_blocks: int
    free_blocks: int
    free_slots: int
    running: int
    def __init__(self, total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., free_slots: _Optional[int] = ..., running: _Optional[int] = ...) -> None: ...

class HandoffEvent(_message.Message):
    __slots__ = ("reserved", "refused", "returned", "finished", "status")
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    reserved: Reserved
    refused: Refused
    returned: Returned
    finished: Finished
    status: HostStatus
    def __init__(self, reserved: _Optional[_Union[Reserved, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., returned: _Optional[_Union[Returned, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., status: _Optional[_Union[HostStatus, _Mapping]] = ...) -> None: ...

class HandoffReply(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[HandoffEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[HandoffEvent, _Mapping]]] = ...) -> None: ...
