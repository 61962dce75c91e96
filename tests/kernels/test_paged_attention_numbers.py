"""The numbers inside paged attention: conversions to fp32 are exact, weights as good as stated."""

import math

import numpy as np
import pytest
import torch

from dualpace.kernels import attention_multiply_adds, paged_attention_decode
from dualpace.kernels.reference import EXP2_ERROR, UNIT_ROUNDOFF
from tests.kernels.calls import DTYPES

HEAD_DIM = 256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_widening_is_exact_for_every_finite_bit_pattern(isa: str, dtype: torch.dtype) -> None:
    """With one key the weight is 1, so the output is the value as the kernel read it."""
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    values = torch.where(patterns.isfinite(), patterns, torch.zeros_like(patterns))
    batch = values.numel() // HEAD_DIM
    kv = torch.zeros(batch, 2, 1, 16, HEAD_DIM, dtype=dtype)
    kv[:, 1, 0, 0] = values.view(batch, HEAD_DIM)
    out = torch.empty(batch, 1, HEAD_DIM)
    paged_attention_decode(
        torch.zeros(batch, 1, HEAD_DIM),
        kv,
        torch.arange(batch, dtype=torch.int32).view(batch, 1),
        torch.arange(batch, dtype=torch.int32),
        torch.ones(batch, dtype=torch.int32),
        out,
        scale=1.0,
        num_threads=1,
        isa=isa,
    )
    assert torch.equal(out.view(-1), values.float())


def test_softmax_weights_over_their_whole_range(isa: str) -> None:
    """Two keys with scores 0 and -t: the ratio of their weights is e^-t."""
    t = torch.linspace(0.0, 87.0, 20_001)
    batch = t.numel()
    kv = torch.zeros(batch, 2, 1, 16, 8)
    kv[:, 0, 0, 1, 0] = -t
    kv[:, 1, 0, 0, 0] = 1.0
    kv[:, 1, 0, 1, 1] = 1.0
    query = torch.zeros(batch, 1, 8)
    query[:, 0, 0] = 1.0
    out = torch.empty(batch, 1, 8)
    paged_attention_decode(
        query,
        kv,
        torch.arange(batch, dtype=torch.int32).view(batch, 1),
        torch.arange(batch, dtype=torch.int32),
        torch.full((batch,), 2, dtype=torch.int32),
        out,
        scale=1.0,
        num_threads=1,
        isa=isa,
    )
    ratio = (out[:, 0, 1].double() / out[:, 0, 0].double()).numpy()
    exact = np.exp(-t.double().numpy())
    # The score in log2 is the product of t and a factor rounded four times; then 2^x; then one
    # division for each of the two outputs.
    allowed = 5 * UNIT_ROUNDOFF * t.double().numpy() + EXP2_ERROR + 2 * UNIT_ROUNDOFF
    assert (np.abs(ratio / exact - 1.0) <= allowed).all()
    assert ratio[0] == 1.0
    assert math.isclose(ratio[-1], math.exp(-87.0), rel_tol=1e-4)


def test_a_key_far_below_the_largest_has_no_weight_at_all(isa: str) -> None:
    kv = torch.zeros(1, 2, 1, 16, 8)
    kv[0, 0, 0, 1, 0] = -1000.0
    kv[0, 1, 0, 1, 0] = 3e38
    out = torch.empty(1, 1, 8)
    query = torch.zeros(1, 1, 8)
    query[0, 0, 0] = 1.0
    zero = torch.zeros(1, dtype=torch.int32)
    paged_attention_decode(
        query, kv, zero.view(1, 1), zero, zero + 2, out, scale=1.0, num_threads=1, isa=isa
    )
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3, 8, 12])
def test_the_probe_counts_elements(isa: str, dtype: str, group: int) -> None:
    like = torch.zeros(1, dtype=DTYPES[dtype])
    one = attention_multiply_adds(100, like=like, group=group, num_threads=1, isa=isa)
    assert one > 0
    two = attention_multiply_adds(200, like=like, group=group, num_threads=1, isa=isa)
    assert two == 2 * one
