"""The operator's short form: small enough, and still a profile that routing can read."""

import base64
import gzip
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from dualpace.profiler.document import build_profile, cells_evidence
from dualpace.profiler.knots import QUICK_KNOTS, THOROUGH_KNOTS, Knots
from dualpace.profiler.report import MAX_BYTES, encode_report
from dualpace.profiler.thresholds import derive_thresholds
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.profile_json import profile_from_json
from tests.unit.profiler.measured import emulated, sweep

TOPOLOGY = {"cpus": 64, "threads_per_core": 2, "numa_nodes": 2}


def noisy(knots: Knots, *, preset: bool) -> Profile:
    """A profile whose digits do not compress."""
    measured = sweep(knots)
    rng = random.Random(7)
    results = {
        key: replace(r, ms=r.ms * rng.uniform(0.97, 1.03)) for key, r in measured.results.items()
    }
    measured = replace(emulated(measured) if preset else measured, results=results)
    profile = build_profile(measured, cells_evidence(measured))
    return replace(profile, thresholds=derive_thresholds(profile, 1.0))


def decode(text: str) -> Any:
    if text.startswith("gz:"):
        text = gzip.decompress(base64.b64decode(text[3:], validate=True)).decode()
    return json.loads(text)


@pytest.mark.parametrize("preset", [False, True], ids=["measured", "preset"])
@pytest.mark.parametrize("knots", [QUICK_KNOTS, THOROUGH_KNOTS], ids=["quick", "thorough"])
def test_a_report_fits_and_predicts_what_the_profile_does(knots: Knots, preset: bool) -> None:
    profile = noisy(knots, preset=preset)
    text = encode_report(profile, TOPOLOGY)
    assert len(text.encode()) <= MAX_BYTES
    report = decode(text)
    assert report["format"] == "dualpace-profile-report/1"
    assert report["topology"] == TOPOLOGY
    short = profile_from_json(report["profile"])
    assert short.thresholds == profile.thresholds
    assert short.sources == profile.sources
    assert not short.evidence
    mine, theirs = NodeCosts(profile), NodeCosts(short)
    for rows, tokens in ((1, 1024), (32, 32768), (256, 131072)):
        assert theirs.host.step_s(rows, tokens) == pytest.approx(
            mine.host.step_s(rows, tokens), rel=0.15
        )


def test_what_fits_is_left_whole() -> None:
    profile = noisy(QUICK_KNOTS, preset=False)
    short = profile_from_json(decode(encode_report(profile, TOPOLOGY))["profile"])
    assert short == replace(profile, evidence={})
