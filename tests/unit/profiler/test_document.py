"""Profiles built from sweeps: what routing reads, and where each number came from."""

from dataclasses import replace
from pathlib import Path

import pytest

from dualpace.checkpoint.config import MoeConfig
from dualpace.core.assist import AssistTerms
from dualpace.core.errors import SettingsError
from dualpace.profiler.document import SYNC, Measured, build_profile, cells_evidence
from dualpace.profiler.knots import QUICK_KNOTS, THOROUGH_KNOTS
from dualpace.profiler.timing import Summary
from dualpace.profiles import read_profile, write_profile
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile import Origin, Profile, Source
from dualpace.scheduling.routing import RouteCosts, Router
from tests.unit.profiler.measured import (
    CONFIG,
    OVERHEAD_MS,
    emulated,
    post_ms,
    stand_in,
    step_ms,
    sweep,
)


@pytest.mark.parametrize("knots", [QUICK_KNOTS, THOROUGH_KNOTS], ids=["quick", "thorough"])
@pytest.mark.parametrize("kind", [sweep, lambda k: stand_in(sweep(k))])
def test_the_file_is_what_routing_reads(tmp_path: Path, knots: object, kind: object) -> None:
    measured: Measured = kind(knots)  # type: ignore[operator]
    profile = build_profile(measured, cells_evidence(measured))
    write_profile(tmp_path / "p.json", profile)
    read = read_profile(tmp_path / "p.json")
    assert read == profile
    costs = NodeCosts(read)
    for rows, tokens in ((1, 512), (16, 4096), (200, 20000)):
        took_s = costs.host.step_s(rows, tokens)
        assert took_s == pytest.approx(step_ms("host", rows, tokens) / 1e3, rel=0.1)
    router = Router(RouteCosts(costs))
    assert router.choose(64, 65536, AssistTerms(open=True)).host_s > 0


def test_tables_are_of_their_side() -> None:
    profile = build_profile(sweep(), {})
    assert profile.host.step_overhead_ms == OVERHEAD_MS["host"]
    assert profile.gpu.step_overhead_ms == OVERHEAD_MS["gpu"]
    assert profile.gpu.post_attention(64) == pytest.approx(post_ms("gpu", 64), rel=1e-3)
    assert profile.host.post_attention(64) == pytest.approx(post_ms("host", 64), rel=1e-3)


def sources(profile: Profile) -> tuple[Source, Source, Source, Source]:
    s = profile.sources
    return s.host, s.gpu, s.transfers, s.assist


def test_every_part_says_where_it_comes_from() -> None:
    measured, cpu, estimated = Source.MEASURED, Source.STAND_IN, Source.ESTIMATED
    on_gpu = build_profile(sweep(), {})
    assert sources(on_gpu) == (measured, measured, measured, estimated)
    on_cpu = build_profile(stand_in(sweep()), {})
    assert sources(on_cpu) == (measured, cpu, cpu, estimated)
    assert (on_gpu.origin, on_cpu.origin) == (Origin.MEASURED, Origin.MEASURED)
    preset = emulated(sweep(sides=("host",)))
    named = build_profile(preset, cells_evidence(preset))
    assert {step["side"] for step in named.evidence["steps"]} == {"host"}  # all that was measured
    assert sources(named) == (measured, estimated, estimated, estimated)
    assert named.origin is Origin.ROOFLINE  # a result made with it is no measurement
    assert named.host == on_cpu.host


def test_the_assist_round_trip_is_measured_where_there_is_a_device() -> None:
    measured = sweep()
    rung = replace(measured, results={**measured.results, SYNC: Summary(0.0123, 0.01, 9, True)})
    assert sources(build_profile(rung, {}))[3] is Source.MEASURED
    assert build_profile(rung, {}).assist_sync_ms == 0.0123
    assert sources(build_profile(stand_in(rung), {}))[3] is Source.STAND_IN
    assert build_profile(measured, {}).assist_sync_ms > 0.0


def test_an_estimate_is_that_of_the_preset_for_this_model() -> None:
    """Of a model that a preset knows, the tables are those of the preset."""
    known = preset_profile("rtx-4090", "xeon-8480", "llama-3.1-8b")
    config = replace(
        CONFIG,
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        layers=CONFIG.layers[:1] * 32,
    )
    profile = build_profile(replace(emulated(sweep(sides=("host",))), config=config), {})
    assert profile.gpu == known.gpu
    assert profile.gpu_prefill_attention == known.gpu_prefill_attention
    assert profile.to_host == known.to_host
    moe = MoeConfig(num_experts=8, top_k=2, intermediate_size=512, renormalise=True)
    with pytest.raises(SettingsError, match="dense models alone"):
        build_profile(
            replace(emulated(sweep(sides=("host",))), config=replace(config, moe=moe)), {}
        )


def test_the_evidence_has_every_result_and_checks_the_tables_by_iterations() -> None:
    measured = sweep()
    results = dict(measured.results)
    results["host/head/1"] = replace(results["host/head/1"], stable=False)
    evidence = cells_evidence(replace(measured, results=results))
    assert set(evidence["cells"]) == set(results)
    assert evidence["unstable"] == ["host/head/1"]
    assert {step["side"] for step in evidence["steps"]} == {"host", "gpu"}
    for step in evidence["steps"]:
        assert step["predicted_ms"] == pytest.approx(step["measured_ms"], rel=0.1)
