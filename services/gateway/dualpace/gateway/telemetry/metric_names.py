"""Every metric name of the gateway, so that a rename is one diff.

Names with `vllm:` are vLLM's, for the dashboards, autoscalers and endpoint pickers that know them;
some of these read only the first series of a gauge, so each of the three gauges has exactly one.
"""

VLLM_LABELS = ("model_name", "engine")
VLLM_ENGINE = "0"
"""vLLM's `engine` counts replicas behind one port; here there is one, made of two engines."""

REQUESTS_RUNNING = "vllm:num_requests_running"
REQUESTS_WAITING = "vllm:num_requests_waiting"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
PROMPT_TOKENS = "vllm:prompt_tokens"
GENERATION_TOKENS = "vllm:generation_tokens"
REQUESTS_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
PREEMPTIONS = "vllm:num_preemptions"
PREFIX_CACHE_QUERIES = "vllm:prefix_cache_queries"
PREFIX_CACHE_HITS = "vllm:prefix_cache_hits"
REQUEST_SUCCESS = "vllm:request_success"
ADMISSION_REJECTIONS = "vllm:admission_rejections"
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E_LATENCY = "vllm:e2e_request_latency_seconds"
QUEUE_TIME = "vllm:request_queue_time_seconds"
PREFILL_TIME = "vllm:request_prefill_time_seconds"
DECODE_TIME = "vllm:request_decode_time_seconds"
INFERENCE_TIME = "vllm:request_inference_time_seconds"
REQUEST_PROMPT_TOKENS = "vllm:request_prompt_tokens"
REQUEST_GENERATION_TOKENS = "vllm:request_generation_tokens"
ITERATION_TOKENS = "vllm:iteration_tokens_total"
CACHE_CONFIG = "vllm:cache_config_info"
LORA_REQUESTS = "vllm:lora_requests_info"
SPECULATED = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
)
"""Counters of speculative decoding."""

ENGINE_PREFIX = "dualpace_engine_"
"""Followed by the name of a gauge that an engine reports."""
ENGINE_CONNECTED = ENGINE_PREFIX + "connected"
ENGINE_HEARTBEAT_AGE = ENGINE_PREFIX + "heartbeat_age_seconds"
GATEWAY_PREFIX = "dualpace_gateway_"
"""Followed by the name of a gauge of the process."""
TOKENS = "dualpace_tokens"
CLIENT_DISCONNECTS = "dualpace_client_disconnects"
REFUSED = "dualpace_requests_refused"
SLO = "dualpace_slo"
LIMITS_DEGRADED = "dualpace_limits_degraded"
WAITING_GENERATIONS = "dualpace_waiting_generations"
WAITING_TOKENS = "dualpace_waiting_prompt_tokens"

HTTP_REQUESTS = "http_requests"
HTTP_DURATION = "http_request_duration_seconds"
