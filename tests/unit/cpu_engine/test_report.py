"""What the engine says of itself is what it runs on."""

import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("dualpace.kernels", reason="the native kernels are not built")

from dualpace.checkpoint import open_checkpoint
from dualpace.cpu_engine.cores import CorePlan
from dualpace.cpu_engine.report import HostReport, host_report, tile_work
from dualpace.kernels import LEAST_TILE_HEADS, capabilities
from dualpace.models import KvPool, TorchPagedAttention, load_decoder, torch_linear
from dualpace.models.host_step import host_step
from dualpace.models.linear import LinearFactory
from dualpace.models.native_linear import NativeLinearFactory
from dualpace.testing.gold import tiny_model

CORES = CorePlan(num_threads=2, cpus=(), reason="no core to spare")


def report_of(model: str, linear: LinearFactory) -> tuple[dict[str, float], tuple[str, ...]]:
    cpu = torch.device("cpu")
    decoder = load_decoder(
        open_checkpoint(tiny_model(model)), dtype=torch.float32, device=cpu, linear=linear
    )
    pool = KvPool.allocate(decoder.config, 4, 16, dtype=torch.float32, device=cpu)
    tables = torch.zeros(1, 4, dtype=torch.int32).numpy()
    step = host_step(decoder, pool, tables, TorchPagedAttention(), num_threads=2)
    report = host_report(decoder, step, CORES)
    return report.gauges(), report.lines()


def test_packed_weights_and_the_native_step_are_told() -> None:
    gauges, lines = report_of("qwen3", NativeLinearFactory(2, weights="int8"))
    assert gauges["native_step"] == 1
    assert gauges["packed_int8_bytes"] > 0
    assert gauges[f"isa_{capabilities().isa}"] == 1
    assert gauges["compute_threads"] == 2
    assert gauges["pinned_threads"] == 0
    assert "one native call an iteration" in lines[0]
    assert "MiB int8" in lines[1]
    assert "no core to spare" in lines[2]


def test_experts_are_counted_and_run_in_stages() -> None:
    gauges, lines = report_of("mixtral", NativeLinearFactory(2, weights="float16"))
    infos = open_checkpoint(tiny_model("mixtral")).tensor_infos()
    experts = sum(math.prod(info.shape) for name, info in infos.items() if "experts" in name)
    assert gauges["native_step"] == 0
    assert gauges["packed_float16_bytes"] > 2 * experts > 0
    assert "stage by stage" in lines[0]


def test_torch_s_weights_are_not_called_packed() -> None:
    gauges, lines = report_of("qwen3", torch_linear)
    assert gauges["native_step"] == 0
    assert not [name for name in gauges if name.startswith("packed_") and name.endswith("8_bytes")]
    assert lines[1] == "weights: in torch"


@pytest.mark.parametrize(
    ("model", "isa", "dtype", "packed", "words"),
    [
        ("qwen3", "amxbf16", torch.bfloat16, "bfloat16", ["products of 5 rows or more"]),
        ("qwen3", "amxbf16", torch.float32, "bfloat16", []),
        ("qwen3", "avx512bf16", torch.bfloat16, "bfloat16", []),
        ("qwen3", "amxbf16", torch.bfloat16, "int8", []),
    ],
)
def test_what_runs_on_tiles_is_told(
    model: str, isa: str, dtype: torch.dtype, packed: str, words: list[str]
) -> None:
    decoder = load_decoder(
        open_checkpoint(tiny_model(model)), dtype=dtype, device=torch.device("cpu")
    )
    work = tile_work(isa, decoder, {packed: 1000})
    group = decoder.config.num_heads // decoder.config.num_kv_heads
    assert group < LEAST_TILE_HEADS, "this model's attention is not for tiles"
    assert list(work) == words
    report = HostReport(
        backend="native",
        isa=isa,
        tile_refusal="",
        tile_work=work,
        native_step=True,
        rows_in_turns=64,
        packed_bytes={packed: 1000},
        head_screen_bytes=0,
        huge_page_bytes=0,
        num_threads=1,
        affinities=(),
        pinning="",
    )
    assert report.gauges()["tile_products"] == bool(words)
    assert report.gauges()["tile_attention"] == 0
    assert all(word in report.lines()[0] for word in words)
    assert report.gauges()["rows_in_turns"] == 64
    assert "two groups in turns from 64 rows on" in report.lines()[0]


def test_a_refusal_of_tiles_is_logged_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = replace(capabilities(), isa="avx512bf16", tile_refusal="the system said no")
    monkeypatch.setattr("dualpace.kernels.capabilities", lambda: refused)
    gauges, _ = report_of("qwen3", torch_linear)
    assert gauges["tiles_refused"] == 1
    assert gauges["isa_avx512bf16"] == 1
    assert "has tiles (AMX), but the system said no: avx512bf16 is used" in caplog.text
    assert "no tiles: the system said no" in str(refused)
