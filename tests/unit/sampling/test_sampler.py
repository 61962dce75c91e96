"""The choice of the next token."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dualpace.core.request import SamplingParams
from dualpace.sampling import LogitsError, sample, uniform

# A coarse grid makes exact ties frequent.
LOGITS = st.integers(-40, 40).map(lambda n: n / 8)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-4, 0.3, 1.0, 2.0, 5.0]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 5, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, 0, 1, 4]),
)
ROW = st.tuples(st.lists(LOGITS, min_size=13, max_size=13), PARAMS, st.integers(0, 100_000))


def ids(logits: Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    return [token.token_id for token in sample(logits, params, positions)]


def allowed_and_weights(row: list[float], p: SamplingParams) -> dict[int, float]:
    """Which tokens may be drawn, and their weights, in plain Python."""
    greatest = max(row)
    weights = {i: math.exp((x - greatest) / p.temperature) for i, x in enumerate(row)}
    best_first = sorted(weights, key=lambda i: (-row[i], i))
    if p.top_k:
        best_first = best_first[: p.top_k]
    mass = math.fsum(weights[i] for i in best_first) * p.top_p
    kept: list[int] = []
    for i in best_first:
        kept.append(i)
        if math.fsum(weights[j] for j in kept) >= mass:
            break
    return {i: weights[i] for i in kept if weights[i] >= p.min_p}


def on_an_edge(row: list[float], p: SamplingParams, u: float) -> bool:
    """Whether rounding may decide: a sum within 1e-12 of a limit."""
    greatest = max(row)
    weights = [math.exp((x - greatest) / p.temperature) for x in row]
    best_first = sorted(range(len(row)), key=lambda i: (-row[i], i))[: p.top_k or len(row)]
    total, running = math.fsum(weights[i] for i in best_first), 0.0
    for i in best_first:
        running += weights[i]
        if abs(running / total - p.top_p) < 1e-12:
            return True
    kept = allowed_and_weights(row, p)
    total, running = math.fsum(kept.values()), 0.0
    for i in sorted(kept):
        running += kept[i]
        if abs(running / total - u) < 1e-12:
            return True
    return False


@given(ROW)
@settings(max_examples=400, deadline=None)
def test_random_rows_follow_the_inverse_distribution(
    row: tuple[list[float], SamplingParams, int],
) -> None:
    logits, p, position = row
    if p.temperature == 0.0:
        return
    u = uniform(p.seed, position)
    if on_an_edge(logits, p, u):
        return
    kept = allowed_and_weights(logits, p)
    target, running, expected = u * math.fsum(kept.values()), 0.0, -1
    for i in sorted(kept):
        running += kept[i]
        expected = i
        if running > target:
            break
    assert ids(torch.tensor([logits]), [p], [position]) == [expected]


@given(st.lists(ROW, min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(
    rows: list[tuple[list[float], SamplingParams, int]],
) -> None:
    logits = torch.tensor([row[0] for row in rows])
    together = sample(logits, [row[1] for row in rows], [row[2] for row in rows])
    alone = [sample(logits[i : i + 1], [row[1]], [row[2]])[0] for i, row in enumerate(rows)]
    assert together == alone


@given(st.lists(LOGITS, min_size=1, max_size=40))
def test_greedy_takes_the_lowest_id_among_equals(row: list[float]) -> None:
    expected = row.index(max(row))
    assert ids(torch.tensor([row]), [SamplingParams(temperature=0.0)], [0]) == [expected]


@given(
    st.lists(LOGITS, min_size=2, max_size=40),
    st.sampled_from([{"top_k": 1}, {"top_p": 1e-9}]),
    st.sampled_from([1e-4, 0.7, 5.0]),
    st.integers(0, 2**64 - 1),
)
def test_cuts_to_one_token_are_greedy(
    row: list[float], cut: dict[str, float], temperature: float, seed: int
) -> None:
    p = SamplingParams(temperature=temperature, seed=seed, **cut)  # type: ignore[arg-type]
    assert ids(torch.tensor([row]), [p], [5]) == [row.index(max(row))]


def test_min_p_of_one_leaves_the_best_tokens_alone() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9999, 3.0]])
    drawn = {ids(logits, [SamplingParams(min_p=1.0, seed=seed)], [0])[0] for seed in range(100)}
    assert drawn == {1, 3}


def test_a_tiny_temperature_is_greedy_and_overflows_nothing() -> None:
    logits = torch.tensor([[-3e38, 1.0, 1.001, 3e37]])
    for temperature in (1e-4, 1e-30, 5e-324):
        assert ids(logits, [SamplingParams(temperature=temperature)], [0]) == [3]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.65}, [4 / 7, 3 / 7, 0, 0]),
        # Top-p works on what top-k left: 0.7 of (4/7, 3/7) takes both, 0.5 takes one.
        ({"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0]),
        ({"min_p": 0.45}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"temperature": 5.0}, None),
    ],
)
def test_draws_are_distributed_as_asked(
    params: dict[str, float], expected: list[float] | None
) -> None:
    probabilities = [0.4, 0.3, 0.2, 0.1]
    if expected is None:
        flat = [p ** (1 / params["temperature"]) for p in probabilities]
        expected = [p / sum(flat) for p in flat]
    n = 4000
    logits = torch.tensor([probabilities]).log().expand(n, -1)
    drawn = ids(
        logits,
        [SamplingParams(seed=seed, **params) for seed in range(n)],  # type: ignore[arg-type]
        [11] * n,
    )
    counts = Counter(drawn)
    possible = [i for i, p in enumerate(expected) if p > 0]
    assert set(counts) <= set(possible)
    chi_square = sum((counts[i] - n * expected[i]) ** 2 / (n * expected[i]) for i in possible)
    # At most 3 degrees of freedom: 30 has a probability below 2e-6.
    assert chi_square < 30


def test_wide_nuclei_are_cut_like_narrow_ones() -> None:
    # Far more tokens than the prefix that is tried first.
    torch.manual_seed(3)
    logits = torch.randn(3, 5000)
    params = [SamplingParams(top_p=0.95, temperature=t, seed=9) for t in (1.0, 2.0, 5.0)]
    for row, p in enumerate(params):
        kept = allowed_and_weights(logits[row].tolist(), p)
        assert len(kept) > 1024
        drawn = {ids(logits[row : row + 1], [p], [position])[0] for position in range(300)}
        assert drawn <= set(kept)
        target, running, expected = uniform(9, 5) * math.fsum(kept.values()), 0.0, -1
        for i in sorted(kept):
            running += kept[i]
            expected = i
            if running > target:
                break
        assert ids(logits, params, [5] * 3)[row] == expected


@pytest.mark.parametrize("width", [1003, 4096, 4099])
def test_large_rows_do_not_depend_on_their_neighbours(width: int) -> None:
    # Wide enough for vectorised and for parallel loops, with rows at all alignments.
    torch.manual_seed(6)
    logits = torch.randn(70, width) * 4
    params = [
        SamplingParams(
            temperature=(0.0, 0.5, 1.0, 3.0)[row % 4],
            top_p=(1.0, 0.8, 0.99)[row % 3],
            top_k=(0, 40, 2000)[row % 5 % 3],
            min_p=(0.0, 0.0, 0.01)[row % 7 % 3],
            seed=row,
            logprobs=3,
        )
        for row in range(70)
    ]
    positions = list(range(70))
    together = sample(logits, params, positions)
    for row in range(70):
        alone = sample(logits[row : row + 1], [params[row]], [row])
        assert alone == together[row : row + 1]


def test_rounding_noise_in_logits_does_not_change_the_choice() -> None:
    torch.manual_seed(4)
    logits = torch.randn(64, 2000) * 3
    noisy = logits + torch.randn_like(logits) * 1e-6
    params = [SamplingParams(seed=seed) for seed in range(64)]
    changed = sum(
        a != b
        for a, b in zip(ids(logits, params, [0] * 64), ids(noisy, params, [0] * 64), strict=True)
    )
    # The edges of the distribution move by about 1e-6: 64 draws meet one with a chance of 1e-4.
    assert changed == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused(value: float, temperature: float) -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = value
    params = [SamplingParams(temperature=temperature)] * 3
    with pytest.raises(LogitsError, match=r"rows \[1\]"):
        sample(logits, params, [0] * 3)


def test_huge_but_finite_logits_are_served() -> None:
    logits = torch.full((1, 4), 3e38)
    logits[0, 2] = 3.2e38
    assert ids(logits, [SamplingParams(temperature=0.0)], [0]) == [2]


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.zeros(0, 5), [], []) == []


@given(st.lists(LOGITS, min_size=1, max_size=30), st.integers(0, 5), PARAMS)
@settings(deadline=None)
def test_logprobs_are_those_of_the_raw_logits(
    row: list[float], count: int, p: SamplingParams
) -> None:
    p = SamplingParams(
        temperature=p.temperature, top_k=p.top_k, top_p=p.top_p, seed=p.seed, logprobs=count
    )
    (token,) = sample(torch.tensor([row]), [p], [3])
    assert token.logprobs is not None
    greatest = max(row)
    log_total = greatest + math.log(math.fsum(math.exp(x - greatest) for x in row))
    assert token.logprobs.chosen == pytest.approx(row[token.token_id] - log_total, abs=1e-9)
    best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]
    assert [i for i, _ in token.logprobs.top] == best
    for i, value in token.logprobs.top:
        assert value == pytest.approx(row[i] - log_total, abs=1e-9)


def test_logprobs_are_absent_unless_asked_for() -> None:
    (token,) = sample(torch.zeros(1, 4), [SamplingParams()], [0])
    assert token.logprobs is None
