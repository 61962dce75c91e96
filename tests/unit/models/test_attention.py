"""Paged attention equals plain attention over the same keys, whatever lies around them."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dualpace.models.torch_attention as torch_attention_module
from dualpace.models import PagedAttention, TorchPagedAttention

TORCH = TorchPagedAttention()


def implementations() -> list[object]:
    try:
        from dualpace.models.native_attention import NativePagedAttention  # noqa: PLC0415
    except ImportError:
        skip = pytest.mark.skip(reason="the native kernels are not built")
        return [pytest.param(TORCH, id="torch"), pytest.param(None, id="native", marks=skip)]
    return [
        pytest.param(TORCH, id="torch"),
        pytest.param(NativePagedAttention(num_threads=2), id="native"),
    ]


def reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float, positions: list[int], window: int | None
) -> Tensor:
    """Attention in float64: q [T, heads, D] at positions, k and v [N, kv_heads, D]."""
    group = q.shape[1] // k.shape[1]
    output = torch.empty_like(q, dtype=torch.float64)
    for i, position in enumerate(positions):
        low = 0 if window is None else max(0, position - window + 1)
        for head in range(q.shape[1]):
            keys = k[low : position + 1, head // group].double()
            values = v[low : position + 1, head // group].double()
            weights = (keys @ q[i, head].double() * scale).softmax(0)
            output[i, head] = weights @ values
    return output


@dataclass(frozen=True)
class Paged:
    """Sequences whose keys and values are scattered over a layer full of NaN."""

    kv_layer: Tensor
    tables: Tensor
    k: list[Tensor]
    v: list[Tensor]


def paged(
    lengths: list[int], kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, seed: int
) -> Paged:
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-n // block_size) for n in lengths]
    num_blocks = sum(counts) + 2
    free = torch.randperm(num_blocks, generator=generator).tolist()
    layer = torch.full((num_blocks, 2, kv_heads, block_size, head_dim), math.nan, dtype=dtype)
    # Entries behind a sequence's blocks are no block ids.
    tables = torch.full((len(lengths) + 1, max(counts, default=0) + 2), 2**30, dtype=torch.int32)
    keys, values = [], []
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        k, v = (
            torch.randn(length, kv_heads, head_dim, generator=generator).to(dtype) for _ in "kv"
        )
        for index in range(count):
            block = free.pop()
            tables[row, index] = block
            part = slice(index * block_size, (index + 1) * block_size)
            layer[block, 0, :, : len(k[part])] = k[part].transpose(0, 1)
            layer[block, 1, :, : len(v[part])] = v[part].transpose(0, 1)
        keys.append(k)
        values.append(v)
    return Paged(layer, tables, keys, values)


SHAPES = st.tuples(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([8, 24, 64]),
    st.sampled_from([16, 32]),
)
WINDOWS = st.sampled_from([None, 1, 2, 15, 16, 17, 40])
LENGTHS = st.integers(1, 70)


@pytest.mark.parametrize("attention", implementations())
@given(
    shape=SHAPES,
    lengths=st.lists(LENGTHS, min_size=1, max_size=5),
    window=WINDOWS,
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_decode_equals_plain_attention(
    attention: PagedAttention,
    shape: tuple[int, int, int, int],
    lengths: list[int],
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    kv_heads, group, head_dim, block_size = shape
    data = paged(lengths, kv_heads, head_dim, block_size, dtype, seed)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    q = torch.randn(len(lengths), kv_heads * group, head_dim)
    output = attention.decode(
        q,
        data.kv_layer,
        data.tables,
        order.int(),
        torch.tensor(lengths, dtype=torch.int32)[order],
        scale=0.3,
        window=window,
    )
    assert output.shape == q.shape
    assert output.dtype == q.dtype
    for i, row in enumerate(order.tolist()):
        expected = reference(
            q[i : i + 1], data.k[row], data.v[row], 0.3, [lengths[row] - 1], window
        )
        # fp32 throughout: KV is widened exactly, so only sums of up to 70 terms are rounded.
        torch.testing.assert_close(output[i : i + 1].double(), expected, rtol=0, atol=2e-5)


@given(
    shape=SHAPES,
    start=st.integers(0, 50),
    count=st.integers(1, 40),
    window=WINDOWS,
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_prefill_equals_plain_attention(
    shape: tuple[int, int, int, int], start: int, count: int, window: int | None, seed: int
) -> None:
    kv_heads, group, head_dim, block_size = shape
    length = start + count
    data = paged([length], kv_heads, head_dim, block_size, torch.float32, seed)
    q = torch.randn(count, kv_heads * group, head_dim)
    output = TORCH.prefill(q, data.kv_layer, data.tables[0], start, scale=0.3, window=window)
    expected = reference(q, data.k[0], data.v[0], 0.3, list(range(start, length)), window)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("window", [None, 5, 33])
def test_tiling_changes_nothing(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = paged([90, 3, 41, 64], 2, 16, 16, torch.float32, 1)
    q = torch.randn(4, 6, 16)
    rows, lengths = torch.arange(4).int(), torch.tensor([90, 3, 41, 64], dtype=torch.int32)
    queries = torch.randn(50, 6, 16)

    def both() -> tuple[Tensor, Tensor]:
        decoded = TORCH.decode(
            q, data.kv_layer, data.tables, rows, lengths, scale=0.25, window=window
        )
        return decoded, TORCH.prefill(
            queries, data.kv_layer, data.tables[0], 40, scale=0.25, window=window
        )

    whole = both()
    monkeypatch.setattr(torch_attention_module, "_GATHER_LIMIT", 1)
    monkeypatch.setattr(torch_attention_module, "_SCORE_LIMIT", 700)
    for tiled, untiled in zip(both(), whole, strict=True):
        torch.testing.assert_close(tiled, untiled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", implementations())
def test_a_sequence_without_keys_gets_zeros(attention: PagedAttention) -> None:
    data = paged([5], 1, 8, 16, torch.float32, 2)
    q = torch.randn(2, 2, 8)
    rows = torch.tensor([1, 0], dtype=torch.int32)
    lengths = torch.tensor([0, 5], dtype=torch.int32)
    output = attention.decode(q, data.kv_layer, data.tables, rows, lengths, scale=1.0, window=None)
    assert torch.equal(output[0], torch.zeros(2, 8))
    assert output[1].isfinite().all()


def test_no_sequences_give_no_rows() -> None:
    data = paged([5], 1, 8, 16, torch.float32, 2)
    none = torch.empty(0, dtype=torch.int32)
    output = TORCH.decode(
        torch.empty(0, 2, 8), data.kv_layer, data.tables, none, none, scale=1.0, window=None
    )
    assert output.shape == (0, 2, 8)


def test_two_sequences_may_share_blocks() -> None:
    data = paged([32], 2, 16, 16, torch.float32, 3)
    q = torch.randn(1, 4, 16).expand(2, -1, -1).contiguous()
    rows, lengths = torch.zeros(2, dtype=torch.int32), torch.tensor([32, 20], dtype=torch.int32)
    output = TORCH.decode(q, data.kv_layer, data.tables, rows, lengths, scale=0.3, window=None)
    for i, length in enumerate([32, 20]):
        expected = reference(q[i : i + 1], data.k[0], data.v[0], 0.3, [length - 1], None)
        torch.testing.assert_close(output[i : i + 1].double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_come_in_the_queries_dtype(dtype: torch.dtype) -> None:
    data = paged([20], 1, 16, 16, dtype, 4)
    rows, lengths = torch.zeros(1, dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    q = torch.randn(1, 2, 16).to(dtype)
    decoded = TORCH.decode(q, data.kv_layer, data.tables, rows, lengths, scale=0.25, window=None)
    prefilled = TORCH.prefill(q, data.kv_layer, data.tables[0], 19, scale=0.25, window=None)
    expected = reference(q, data.k[0], data.v[0], 0.25, [19], None)
    assert decoded.dtype == prefilled.dtype == dtype
    # One rounding to the dtype at the end: half a unit in the last place of values up to 4.
    step = 2**-9 if dtype is torch.bfloat16 else 2**-11
    for output in (decoded, prefilled):
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=8 * step)
