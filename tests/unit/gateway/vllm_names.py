"""The metrics of vLLM and llm-d that scrapers look for, by family: type, and labels beside its own.

Written down from vLLM's own list, apart from the names that the gateway uses.
"""

COMMON = {"model_name", "engine"}

FAMILIES: dict[str, tuple[str, set[str]]] = {
    "vllm:num_requests_running": ("gauge", COMMON),
    "vllm:num_requests_waiting": ("gauge", COMMON),
    "vllm:num_requests_waiting_by_reason": ("gauge", COMMON | {"reason"}),
    "vllm:kv_cache_usage_perc": ("gauge", COMMON),
    "vllm:prefix_cache_queries": ("counter", COMMON),
    "vllm:prefix_cache_hits": ("counter", COMMON),
    "vllm:num_preemptions": ("counter", COMMON),
    "vllm:prompt_tokens": ("counter", COMMON),
    "vllm:generation_tokens": ("counter", COMMON),
    "vllm:request_success": ("counter", COMMON | {"finished_reason"}),
    "vllm:admission_rejections": ("counter", COMMON | {"reason"}),
    "vllm:time_to_first_token_seconds": ("histogram", COMMON),
    "vllm:inter_token_latency_seconds": ("histogram", COMMON),
    "vllm:request_time_per_output_token_seconds": ("histogram", COMMON),
    "vllm:e2e_request_latency_seconds": ("histogram", COMMON),
    "vllm:request_queue_time_seconds": ("histogram", COMMON),
    "vllm:request_prefill_time_seconds": ("histogram", COMMON),
    "vllm:request_decode_time_seconds": ("histogram", COMMON),
    "vllm:request_inference_time_seconds": ("histogram", COMMON),
    "vllm:request_prompt_tokens": ("histogram", COMMON),
    "vllm:request_generation_tokens": ("histogram", COMMON),
    "vllm:iteration_tokens_total": ("histogram", COMMON),
    "vllm:cache_config_info": ("gauge", COMMON | {"block_size", "num_gpu_blocks"}),
    "vllm:lora_requests_info": (
        "gauge",
        {"max_lora", "running_lora_adapters", "waiting_lora_adapters"},
    ),
    "vllm:spec_decode_num_drafts": ("counter", COMMON),
    "vllm:spec_decode_num_draft_tokens": ("counter", COMMON),
    "vllm:spec_decode_num_accepted_tokens": ("counter", COMMON),
}
