"""Arrivals and traces."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.errors import SettingsError
from dualpace.lab.traces import read_trace, workload
from dualpace.lab.workload import Lengths, fixed, poisson, replay, sharegpt_like


@given(st.floats(0.5, 20), st.integers(0, 1000))
def test_poisson_arrivals_have_their_rate_and_depend_on_the_seed_alone(
    rate: float, seed: int
) -> None:
    arrivals = poisson(fixed(2000, 10, 5), rate, seed)
    assert arrivals == poisson(fixed(2000, 10, 5), rate, seed)
    times = [a.arrival_s for a in arrivals]
    assert times == sorted(times)
    assert times[-1] * rate == pytest.approx(2000, rel=0.15)
    assert times != [a.arrival_s for a in poisson(fixed(2000, 10, 5), rate, seed + 1)]


def test_an_infinite_rate_brings_everybody_at_once() -> None:
    assert {a.arrival_s for a in poisson(fixed(5, 1, 1), math.inf, 0)} == {0.0}


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(SettingsError, match="rate"):
        poisson(fixed(1, 1, 1), rate, 0)


def test_a_replayed_trace_keeps_its_gaps() -> None:
    items = [Lengths(100.0, 1, 2), Lengths(101.5, 3, 4), Lengths(104.0, 5, 6)]
    assert [a.arrival_s for a in replay(items, speed=2.0)] == [0.0, 0.75, 2.0]


def test_the_samples_have_the_published_shape() -> None:
    """Means of the first 2,000 rows of Azure/AzurePublicDataset's traces of 2023."""
    for name, prompt, output in (("azure-conv", 1105, 265), ("azure-code", 1987, 29.5)):
        items = workload(name)
        assert len(items) == 2000
        assert sum(i.prompt_tokens for i in items) / 2000 == pytest.approx(prompt, abs=0.5)
        assert sum(i.output_tokens for i in items) / 2000 == pytest.approx(output, abs=0.5)
    both = workload("azure-code+conv")
    assert both == [*workload("azure-code"), *workload("azure-conv")]


def test_each_format_of_trace_is_read(tmp_path: Path) -> None:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
    azure += "2023-11-16 18:15:50.9951690,396,109"
    burst = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens\n"
    burst += "5,,1,ChatGPT,472,18,490\n45,,1,ChatGPT,1087,0,1087\n"
    mooncake = json.dumps({"timestamp": 3000, "input_length": 6758, "output_length": 500})
    for text, expected in (
        (azure, [(0.0, 374, 44), (4.314579, 396, 109)]),
        (burst, [(0.0, 472, 18)]),  # a request without an answer is no request
        (mooncake + "\n\n", [(0.0, 6758, 500)]),
    ):
        path = tmp_path / "trace"
        path.write_bytes(text.encode())
        found = replay(read_trace(path))
        assert [(a.arrival_s, a.prompt_tokens, a.output_tokens) for a in found] == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("a,b\n1,2\n", "no known trace"), ('{"timestamp": 1}\n', "a row cannot be read")],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        workload(str(path))


@pytest.mark.parametrize("name", ["nowhere.csv", "fixed:1", "fixed:0:4", "fixed:a:b"])
def test_an_unknown_workload_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        workload(name)


def test_synthetic_chat_is_repeatable_and_within_its_bounds() -> None:
    items = sharegpt_like(1000, 3)
    assert items == sharegpt_like(1000, 3) != sharegpt_like(1000, 4)
    assert all(1 <= i.prompt_tokens <= 2048 and 1 <= i.output_tokens <= 1024 for i in items)
    assert workload("fixed:7:9", count=3) == [Lengths(0.0, 7, 9)] * 3
