"""Names of spans and attributes, in one place: conventions for GenAI are still being developed.

`gen_ai.*` without `latency` is of OpenTelemetry's semantic conventions for GenAI, state late 2026;
`gen_ai.latency.*` is what vLLM calls its times, in seconds. The rest is ours.
"""

QUEUE = "queue"
PREFILL = "prefill"
DECODE = "decode"
HANDOFF = "handoff"
RETURN = "return"
HOST_DECODE = "host decode"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_CHOICES = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"  # noqa: S105 - no password
E2E = "gen_ai.latency.e2e"
TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
TIME_IN_PREFILL = "gen_ai.latency.time_in_model_prefill"
TIME_IN_DECODE = "gen_ai.latency.time_in_model_decode"

ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
RPC_SYSTEM = "rpc.system"
RPC_SERVICE = "rpc.service"
RPC_METHOD = "rpc.method"

REQUEST_ID = "dualpace.request_id"
"""Of one choice, in hexadecimal, as in the engines' logs."""
TOKENS = "dualpace.tokens"
"""Generated within the span."""
ASSISTED_TOKENS = "dualpace.assisted_tokens"
"""Of these, in iterations whose dense stages the device computed."""

TIMES = {
    QUEUE: TIME_IN_QUEUE,
    PREFILL: TIME_IN_PREFILL,
    DECODE: TIME_IN_DECODE,
    HOST_DECODE: TIME_IN_DECODE,
}
"""By span, the attribute that repeats how long it took."""
