"""The paged KV tensor."""

import pytest
import torch

from dualpace.checkpoint import open_checkpoint
from dualpace.models import KvPool
from dualpace.testing.gold import tiny_model

CPU = torch.device("cpu")


def make_pool(dtype: torch.dtype = torch.float32) -> KvPool:
    return KvPool(torch.zeros(2, 5, 2, 3, 16, 8, dtype=dtype))


def test_tokens_land_in_their_slots_and_nowhere_else() -> None:
    pool = make_pool()
    k, v = torch.randn(4, 3, 8), torch.randn(4, 3, 8)
    blocks, slots = torch.tensor([4, 0, 4, 2]), torch.tensor([0, 15, 1, 7])
    pool.write(1, blocks, slots, k, v)
    expected = torch.zeros_like(pool.tensor)
    for token, (block, slot) in enumerate(zip(blocks.tolist(), slots.tolist(), strict=True)):
        expected[1, block, 0, :, slot] = k[token]
        expected[1, block, 1, :, slot] = v[token]
    assert torch.equal(pool.tensor, expected)


def test_a_layer_is_a_view_of_the_pool() -> None:
    pool = make_pool()
    layer = pool.layer(1)
    assert layer.shape == (5, 2, 3, 16, 8)
    assert layer.is_contiguous()
    layer[3, 1, 2, 4, 5] = 7.0
    assert pool.tensor[1, 3, 1, 2, 4, 5] == 7.0


def test_values_are_rounded_to_the_pools_dtype() -> None:
    pool = make_pool(torch.bfloat16)
    k = torch.full((1, 3, 8), 1.0 + 2**-9)
    pool.write(0, torch.tensor([1]), torch.tensor([2]), k, -k)
    assert torch.equal(pool.tensor[0, 1, 0, :, 2], k[0].bfloat16())
    assert torch.equal(pool.tensor[0, 1, 1, :, 2], -k[0].bfloat16())


def test_strided_values_are_taken() -> None:
    pool = make_pool()
    wide = torch.randn(2, 9, 8)
    pool.write(0, torch.tensor([1, 2]), torch.tensor([2, 3]), wide[:, 3:6], wide[:, 6:])
    assert torch.equal(pool.tensor[0, 2, 1, :, 3], wide[1, 6:])


def test_allocate_fits_the_model() -> None:
    config = open_checkpoint(tiny_model("qwen3")).config
    pool = KvPool.allocate(config, 7, 32, dtype=torch.float16, device=CPU)
    assert pool.tensor.shape == (3, 7, 2, 2, 32, 48)
    assert (pool.num_layers, pool.num_blocks, pool.block_size) == (3, 7, 32)
    stored = pool.tensor.nbytes // (7 * 32)
    assert config.kv_bytes_per_token(2) == stored


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(5, 2, 3, 16, 8),
        torch.zeros(2, 5, 3, 3, 16, 8),
        torch.zeros(2, 5, 2, 3, 8, 16).transpose(-1, -2),
    ],
)
def test_other_layouts_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="KV tensor: contiguous"):
        KvPool(tensor)
