"""Every metric name of the gateway, so that a rename is one diff.

Names with `vllm:` are vLLM's, for the dashboards, autoscalers and endpoint pickers that know them;
some of these read only the first series of a gauge, so each of the three gauges has exactly one.
"""

REQUESTS_RUNNING = "vllm:num_requests_running"
REQUESTS_WAITING = "vllm:num_requests_waiting"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
PROMPT_TOKENS = "vllm:prompt_tokens"
GENERATION_TOKENS = "vllm:generation_tokens"
REQUEST_SUCCESS = "vllm:request_success"
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
E2E_LATENCY = "vllm:e2e_request_latency_seconds"

ENGINE_PREFIX = "dualpace_engine_"
"""Followed by the name of a gauge that an engine reports."""
ENGINE_CONNECTED = ENGINE_PREFIX + "connected"
ENGINE_HEARTBEAT_AGE = ENGINE_PREFIX + "heartbeat_age_seconds"
GATEWAY_PREFIX = "dualpace_gateway_"
"""Followed by the name of a gauge of the process."""
TOKENS = "dualpace_tokens"
CLIENT_DISCONNECTS = "dualpace_client_disconnects"
REFUSED = "dualpace_requests_refused"
LIMITS_DEGRADED = "dualpace_limits_degraded"
WAITING_GENERATIONS = "dualpace_waiting_generations"
WAITING_TOKENS = "dualpace_waiting_prompt_tokens"

HTTP_REQUESTS = "http_requests"
HTTP_DURATION = "http_request_duration_seconds"
