"""Any request, for tests that send or store one."""

from hypothesis import strategies as st

from dualpace.core.request import (
    MAX_PRIORITY,
    MAX_STOP_TOKEN_IDS,
    MAX_TARGET_S,
    MAX_TOP_K,
    MIN_PRIORITY,
    LogitAdjustments,
    Request,
    SamplingParams,
)
from dualpace.core.trace_context import TraceContext

ID = st.integers(0, 2**63 - 1)
COUNT = st.integers(0, 2**31 - 1)
SOME = st.integers(1, 1000)
FLOAT32 = st.floats(width=32, allow_nan=False)
TOKENS = st.lists(COUNT, max_size=20).map(tuple)

ADJUSTMENTS = st.builds(
    LogitAdjustments,
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 1e6, exclude_min=True),
    logit_bias=st.lists(st.tuples(COUNT, st.floats(-100, 100)), max_size=20).map(tuple),
    allowed_token_ids=TOKENS,
    min_tokens=COUNT,
    grammar=st.text(max_size=200),
)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, MAX_TOP_K),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
    adjustments=st.none() | ADJUSTMENTS,
)
TRACE = st.builds(
    TraceContext,
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=st.binary(min_size=8, max_size=8),
)
REQUEST = st.builds(
    Request,
    request_id=ID,
    gateway_id=ID,
    prompt_tokens=SOME,
    max_tokens=SOME,
    stop_token_ids=st.lists(COUNT, max_size=MAX_STOP_TOKEN_IDS).map(tuple),
    sampling=SAMPLING,
    arrival_s=st.floats(0, 1e12),
    priority=st.integers(MIN_PRIORITY, MAX_PRIORITY),
    prompt_logprobs=st.none() | st.integers(0, 20),
    trace=st.none() | TRACE,
    first_token_target_s=st.floats(0, MAX_TARGET_S),
    token_target_s=st.none() | st.floats(0, MAX_TARGET_S, exclude_min=True),
)
