"""The figure's content, and what is told beside it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dualpace.core.assist import AssistTerms
from dualpace.profiler.document import build_profile, cells_evidence
from dualpace.profiler.figures import BATCHES, CONTEXTS, draw, gains
from dualpace.profiler.show import describe
from dualpace.profiler.thresholds import derive_thresholds
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts, Router
from tests.unit.profiler.measured import sweep


def test_the_chart_shows_what_the_router_chooses() -> None:
    profile = preset_profile("rtx-4090", "xeon-4510-65", "llama-3.1-8b")
    chart = gains(profile)
    for i, rows in enumerate(BATCHES):
        for j, context in enumerate(CONTEXTS):
            router = Router(RouteCosts(NodeCosts(profile)), hysteresis=0.0)
            chosen = router.choose(rows, rows * context, AssistTerms(open=True))
            assert (chosen.route is Route.ASSIST) == (chart[i][j] > 1.0)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_any_profile_is_drawn(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    draw(preset_profile("t4", "xeon-4510-65", "llama-2-7b"), path)
    assert path.stat().st_size > 10_000


def test_a_person_is_told_sources_thresholds_and_checks() -> None:
    measured = sweep()
    profile = build_profile(measured, cells_evidence(measured))
    profile = replace(profile, thresholds=derive_thresholds(profile, 1.0))
    text = "\n".join(describe(profile))
    assert "assist round trip estimated" in text
    assert all(f"{t.name} = " in text for t in profile.thresholds)
    assert "16 rows, 4096 KV tokens: tables say" in text
