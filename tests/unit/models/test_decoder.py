"""The decoder's stages: shapes, dtypes, and independence of rows."""

import pytest
import torch

from dualpace.checkpoint import open_checkpoint
from dualpace.models import Decoder, load_decoder
from dualpace.testing.gold import tiny_model, tiny_model_names

CPU = torch.device("cpu")


def load(model: str, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_decoder(open_checkpoint(tiny_model(model)), dtype=dtype, device=CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", tiny_model_names())
@torch.inference_mode()
def test_stages_have_the_stated_shapes_and_dtypes(model: str, dtype: torch.dtype) -> None:
    decoder = load(model, dtype)
    config = decoder.config
    tokens, positions = torch.tensor([5, 900, 17]), torch.tensor([0, 8, 3])
    hidden = decoder.embed(tokens)
    assert hidden.shape == (3, config.hidden_size)
    assert hidden.dtype == dtype
    for layer in range(decoder.num_layers):
        q, k, v = decoder.pre_attention(layer, hidden, positions)
        assert q.shape == (3, config.num_heads, config.head_dim)
        assert k.shape == v.shape == (3, config.num_kv_heads, config.head_dim)
        assert q.dtype == k.dtype == v.dtype == dtype
        assert q.is_contiguous()
        assert k.is_contiguous()
        # An attention kernel may answer in fp32 whatever the model's dtype.
        hidden = decoder.post_attention(layer, q.float(), hidden)
        assert hidden.shape == (3, config.hidden_size)
        assert hidden.dtype == dtype
    logits = decoder.head(hidden[1:])
    assert logits.shape == (2, config.vocab_size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


@pytest.mark.parametrize("model", ["llama3_rope", "mixtral", "qwen3_moe", "gemma3"])
@torch.inference_mode()
def test_a_row_does_not_depend_on_its_neighbours(model: str) -> None:
    decoder = load(model)
    torch.manual_seed(0)
    tokens = torch.randint(0, 49152, (9,))
    positions = torch.randint(0, 500, (9,))

    def run(rows: slice) -> torch.Tensor:
        hidden = decoder.embed(tokens[rows])
        for layer in range(decoder.num_layers):
            q, k, v = decoder.pre_attention(layer, hidden, positions[rows])
            group = q.shape[1] // k.shape[1]
            mixed = q + (k + v).repeat_interleave(group, dim=1)
            hidden = decoder.post_attention(layer, mixed, hidden)
        return decoder.head(hidden)

    together = run(slice(None))
    for row in range(9):
        torch.testing.assert_close(run(slice(row, row + 1))[0], together[row], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_the_stages_leave_their_inputs_alone() -> None:
    decoder = load("gemma3")
    hidden = decoder.embed(torch.tensor([1, 2]))
    before = hidden.clone()
    q, _, _ = decoder.pre_attention(0, hidden, torch.tensor([4, 5]))
    attended = q.clone()
    decoder.post_attention(0, q, hidden)
    decoder.head(hidden)
    assert torch.equal(hidden, before)
    assert torch.equal(q, attended)


def test_windows_and_scales_are_told_by_layer() -> None:
    gemma = load("gemma3")
    assert [gemma.window(layer) for layer in range(3)] == [16, 16, None]
    assert gemma.attention_scale(2) == 24**-0.5
    assert [load("qwen2_yarn_window").window(layer) for layer in range(3)] == [None, 16, 16]
    assert load("mistral").attention_scale(0) == 32**-0.5


@torch.inference_mode()
def test_no_tokens_are_no_problem() -> None:
    decoder = load("mixtral")
    none = torch.empty(0, dtype=torch.int64)
    hidden = decoder.embed(none)
    q, _, _ = decoder.pre_attention(0, hidden, none)
    assert decoder.post_attention(0, q, hidden).shape == (0, 64)
