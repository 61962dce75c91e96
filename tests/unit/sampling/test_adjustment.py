"""What requests may change about their logits, against plain Python."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.core.errors import GrammarError
from dualpace.core.request import FinishReason, LogitAdjustments, Request, SamplingParams
from dualpace.sampling.logprobs import ranked_logprobs
from dualpace.sampling.row_sampler import RowSampler, SampleRow
from dualpace.scheduling.plan import Failure, Sample

VOCAB = 13
TOKEN = st.integers(0, VOCAB - 1)
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=VOCAB, max_size=VOCAB)
ADJUSTMENTS = st.builds(
    LogitAdjustments,
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.5, 1e-30]),
    logit_bias=st.dictionaries(TOKEN, st.sampled_from([-100.0, 2.0, 0.5]), max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
    allowed_token_ids=st.one_of(
        st.just(()), st.lists(TOKEN, min_size=1, max_size=6, unique=True).map(tuple)
    ),
    min_tokens=st.integers(0, 6),
)


class CountingMatcher:
    """Allows token 3 for the first two tokens, then 5, then nothing but 2; knows what it ate."""

    def __init__(self) -> None:
        self.eaten: list[int] = []

    def consume(self, token_ids: Sequence[int]) -> None:
        if 7 in token_ids:
            raise GrammarError("the grammar cannot be used: seven")
        self.eaten.extend(token_ids)

    def allowed(self) -> npt.NDArray[np.int32]:
        token_id = [3, 3, 5][len(self.eaten)] if len(self.eaten) < 3 else 2
        return np.array([1 << token_id], np.int32)


class Grammars:
    def __init__(self) -> None:
        self.made: list[CountingMatcher] = []

    def matcher(self, grammar: str) -> CountingMatcher:
        if grammar == "bad":
            raise GrammarError("the grammar cannot be used: bad")
        self.made.append(CountingMatcher())
        return self.made[-1]


def request_for(
    adjustments: LogitAdjustments | None,
    request_id: int = 1,
    *,
    prompt: int = 3,
    stops: tuple[int, ...] = (2,),
    logprobs: int | None = None,
) -> Request:
    return Request(
        request_id=request_id,
        gateway_id=9,
        prompt_tokens=prompt,
        max_tokens=50,
        stop_token_ids=stops,
        sampling=SamplingParams(temperature=0.0, adjustments=adjustments, logprobs=logprobs),
    )


def row_for(request: Request, tokens: Sequence[int], slot: int = 0) -> SampleRow:
    return SampleRow(slot, request, len(tokens), lambda begin, end: tokens[begin:end])


def expected_choice(
    logits: Sequence[float], adjustments: LogitAdjustments, tokens: Sequence[int], prompt: int
) -> int:
    """The definitions, token by token."""
    generated = Counter(tokens[prompt:])
    values = {}
    for token_id in range(VOCAB):
        value = np.float32(logits[token_id] + dict(adjustments.logit_bias).get(token_id, 0.0))
        if token_id in tokens:
            penalty = np.float32(adjustments.repetition_penalty)
            with np.errstate(over="ignore"):
                value = value / penalty if value > 0 else value * penalty
        value -= np.float32(adjustments.frequency_penalty * generated[token_id])
        value -= np.float32(adjustments.presence_penalty * (generated[token_id] > 0))
        values[token_id] = float(np.clip(value, -3e38, 3e38))
    allowed = set(adjustments.allowed_token_ids or range(VOCAB))
    if len(generated_of(tokens, prompt)) < adjustments.min_tokens and allowed != {2}:
        allowed -= {2}
    return max(allowed, key=lambda t: (values[t], -t))


def generated_of(tokens: Sequence[int], prompt: int) -> Sequence[int]:
    return tokens[prompt:]


@given(LOGITS, ADJUSTMENTS, st.lists(TOKEN, min_size=3, max_size=12))
@settings(max_examples=300, deadline=None)
def test_every_adjustment_is_what_its_definition_says(
    logits: list[float], adjustments: LogitAdjustments, tokens: list[int]
) -> None:
    sampler = RowSampler(Grammars())
    [sample] = sampler.sample(torch.tensor([logits]), [row_for(request_for(adjustments), tokens)])
    assert isinstance(sample, Sample)
    assert sample.token_id == expected_choice(logits, adjustments, tokens, prompt=3)


@given(
    st.lists(st.tuples(LOGITS, st.none() | ADJUSTMENTS), min_size=1, max_size=5),
    st.lists(TOKEN, min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_rows_depend_on_no_neighbour_and_on_no_history_but_their_tokens(
    rows: list[tuple[list[float], LogitAdjustments | None]], tokens: list[int]
) -> None:
    """Step by step in one batch, or each at once in a fresh sampler, as after a move."""
    together = RowSampler(Grammars())
    requests = [request_for(adjustments, i) for i, (_, adjustments) in enumerate(rows)]
    logits = torch.tensor([row for row, _ in rows])
    found: list[Sample | Failure] = []
    for length in range(3, len(tokens) + 1):
        batch = [row_for(r, tokens[:length], slot) for slot, r in enumerate(requests)]
        found = together.sample(logits.clone(), batch)
    for index, request in enumerate(requests):
        fresh = RowSampler(Grammars())
        alone = fresh.sample(logits[index : index + 1], [row_for(request, tokens)])
        assert alone == [found[index]]


def test_reported_log_probabilities_are_those_before_adjustment() -> None:
    adjustments = LogitAdjustments(logit_bias=((4, 100.0),))
    logits = torch.zeros(1, VOCAB)
    request = request_for(adjustments, logprobs=1)
    [sample] = RowSampler(Grammars()).sample(logits, [row_for(request, [1, 1, 1])])
    assert isinstance(sample, Sample)
    assert sample.token_id == 4
    assert sample.logprobs is not None
    assert sample.logprobs.chosen == pytest.approx(-math.log(VOCAB))
    assert not logits.any()


def test_a_grammar_goes_along_one_token_a_step_and_is_rebuilt_from_tokens() -> None:
    grammars = Grammars()
    sampler = RowSampler(grammars)
    request = request_for(LogitAdjustments(grammar="g"))
    tokens = [7, 7, 7]  # the prompt is none of the grammar's business
    for expected in (3, 3, 5, 2):
        [sample] = sampler.sample(torch.randn(1, VOCAB), [row_for(request, tokens)])
        assert isinstance(sample, Sample)
        assert sample.token_id == expected
        tokens.append(expected)
    [matcher] = grammars.made
    assert matcher.eaten == [3, 3, 5]
    [sample] = RowSampler(grammars).sample(torch.randn(1, VOCAB), [row_for(request, tokens[:5])])
    assert isinstance(sample, Sample)
    assert sample.token_id == 5


def test_a_slot_forgets_its_request_when_another_has_it() -> None:
    grammars = Grammars()
    sampler = RowSampler(grammars)
    for request_id in (1, 2):
        request = request_for(LogitAdjustments(grammar="g"), request_id)
        sampler.sample(torch.randn(1, VOCAB), [row_for(request, [1, 1, 1, 3])])
    assert [matcher.eaten for matcher in grammars.made] == [[3], [3]]


@pytest.mark.parametrize(
    ("adjustments", "tokens", "words"),
    [
        (LogitAdjustments(grammar="bad"), [1, 1, 1], "bad"),
        (LogitAdjustments(grammar="g"), [1, 1, 1, 7], "seven"),
        (LogitAdjustments(grammar="g", allowed_token_ids=(4,)), [1, 1, 1], "allows no token"),
    ],
)
def test_what_cannot_be_done_ends_its_own_row_alone(
    adjustments: LogitAdjustments, tokens: list[int], words: str
) -> None:
    rows = [
        row_for(request_for(adjustments, 1), tokens, 0),
        row_for(request_for(None, 2), tokens, 1),
        row_for(request_for(LogitAdjustments(min_tokens=9), 3), tokens, 2),
    ]
    logits = torch.zeros(3, VOCAB)
    logits[1:, 6] = 1.0
    failure, *samples = RowSampler(Grammars()).sample(logits, rows)
    assert isinstance(failure, Failure)
    assert failure.reason is FinishReason.REFUSED
    assert words in failure.message
    assert samples == [Sample(2, 6), Sample(3, 6)]


def test_a_complete_grammar_ends_the_text_before_min_tokens() -> None:
    request = request_for(LogitAdjustments(grammar="g", min_tokens=40))
    tokens = [1, 1, 1, 3, 3, 5]
    [sample] = RowSampler(Grammars()).sample(torch.zeros(1, VOCAB), [row_for(request, tokens)])
    assert sample == Sample(1, 2)


def test_rows_that_are_not_finite_end_alone() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 3] = math.nan
    rows = [row_for(request_for(LogitAdjustments(min_tokens=1), i), [1] * 3, i) for i in (0, 1)]
    failure, sample = RowSampler(Grammars()).sample(logits, rows)
    assert isinstance(failure, Failure)
    assert (failure.request_id, failure.reason) == (0, FinishReason.ERROR)
    assert isinstance(sample, Sample)


@given(LOGITS, TOKEN)
def test_ranks_count_what_is_likelier_and_equals_of_lower_id(
    logits: list[float], token_id: int
) -> None:
    [found] = ranked_logprobs(torch.tensor([logits]), [token_id], 1)
    order = sorted(range(VOCAB), key=lambda t: (-logits[t], t))
    assert found.rank == order.index(token_id) + 1
    assert [t for t, _ in found.top] == order[:1]
