"""The backend of intel-extension-for-pytorch: with the package where it is, else with a double."""

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualpace.core.errors import SettingsError
from dualpace.models import TorchPagedAttention
from dualpace.models.host_backend import host_backend
from dualpace.models.ipex_backend import load_ipex

PACKAGE = "intel_extension_for_pytorch"


class AttentionDouble:
    """The package's op by its documented arguments, on the reference implementation."""

    @staticmethod
    def single_query_cached_kv_attention(
        output: Tensor, query: Tensor, keys: Tensor, values: Tensor, *rest: Any
    ) -> None:
        head_mapping, scale, tables, lengths, block_size, longest, alibi, window = rest
        assert keys.dtype == values.dtype == query.dtype == output.dtype
        assert head_mapping.tolist() == sorted(head_mapping.tolist())
        assert keys.shape[2] == block_size
        assert longest == int(lengths.max())
        assert int(lengths.min()) > 0
        assert alibi is None
        output.copy_(
            TorchPagedAttention().decode(
                query,
                torch.stack([keys, values], dim=1),
                tables,
                torch.arange(len(query), dtype=torch.int32),
                lengths,
                scale=scale,
                window=None if window == -1 else window,
            )
        )


def optimize(module: nn.Module, *, dtype: torch.dtype, **options: bool) -> nn.Module:
    assert options["weights_prepack"]
    if dtype is torch.float16:
        raise AssertionError("FP16 weight prepack needs the cpu support")
    assert next(module.parameters()).dtype is dtype
    return module


@pytest.fixture
def ipex(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        load_ipex()
    except SettingsError:
        double: Any = types.ModuleType(PACKAGE)
        double.__version__ = "double"
        double.optimize = optimize
        double.llm = types.SimpleNamespace(
            modules=types.SimpleNamespace(PagedAttention=AttentionDouble)
        )
        monkeypatch.setitem(sys.modules, PACKAGE, double)


@pytest.mark.usefixtures("ipex")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_maps_are_torch_s(dtype: torch.dtype, has_bias: bool) -> None:
    weight = torch.randn(100, 70).to(dtype)
    bias = torch.randn(100).to(dtype) if has_bias else None
    x = torch.randn(5, 70).to(dtype)
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    with torch.inference_mode():
        out = host_backend("ipex", 1).linear(weight.clone(), bias)(x)
    assert out.dtype is dtype
    unit = 2.0**-8 if dtype is torch.bfloat16 else 2.0**-24
    magnitude = x.double().abs() @ weight.double().abs().T + 4.0
    bound = 80 * 2.0**-24 * magnitude + unit * expected.abs()
    assert ((out.double() - expected).abs() <= bound).all()


@pytest.mark.usefixtures("ipex")
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_attention_is_the_reference_s(dtype: torch.dtype, window: int | None) -> None:
    kv = torch.randn(30, 2, 2, 16, 64).to(dtype)
    tables = torch.full((6, 8), 2**30, dtype=torch.int32)
    tables[:, :4] = torch.randperm(24).view(6, 4)
    lengths = torch.tensor([1, 16, 0, 17, 64], dtype=torch.int32)
    rows = torch.tensor([5, 0, 1, 3, 2], dtype=torch.int32)
    q = torch.randn(5, 8, 64).to(dtype)
    arguments: dict[str, Any] = {"scale": 0.125, "window": window}
    expected = TorchPagedAttention().decode(q, kv, tables, rows, lengths, **arguments)
    out = host_backend("ipex", 1).attention.decode(q, kv, tables, rows, lengths, **arguments)
    assert out.dtype is dtype
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    tolerance = 0.02 if dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(out, expected, atol=tolerance, rtol=0)


@pytest.mark.usefixtures("ipex")
def test_an_empty_batch_is_nothing_to_do() -> None:
    attention = host_backend("ipex", 1).attention
    none = torch.zeros(0, dtype=torch.int32)
    kv, tables = torch.zeros(1, 2, 1, 16, 8), torch.zeros(1, 1, dtype=torch.int32)
    out = attention.decode(torch.zeros(0, 2, 8), kv, tables, none, none, scale=1.0, window=None)
    assert out.shape == (0, 2, 8)


def test_weights_that_it_does_not_pack_are_named(
    ipex: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = host_backend("ipex", 1).linear
    monkeypatch.setattr(sys.modules[PACKAGE], "optimize", optimize)
    with pytest.raises(SettingsError, match="backend=ipex cannot pack float16 weights here: FP16"):
        linear(torch.zeros(4, 4, dtype=torch.float16), None)


def test_a_package_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(
        SettingsError, match=r"backend=ipex: .* cannot be imported .* needs torch 2.8"
    ):
        host_backend("ipex", 1)


@pytest.mark.usefixtures("ipex")
def test_it_is_said_that_its_life_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    assert host_backend("ipex", 1).name == "ipex"
    assert "end of life" in caplog.text
    assert host_backend("native", 1).name == "native"
