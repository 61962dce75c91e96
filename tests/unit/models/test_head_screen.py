"""Greedy tokens that are found by the output head in int16 are those of the head itself."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualpace.checkpoint import open_checkpoint
from dualpace.kernels import narrow_arithmetic
from dualpace.models import Decoder, KvPool, load_decoder
from dualpace.models.host_step import DecodeBatch, Interruption
from dualpace.models.native_linear import NativeLinearFactory
from dualpace.models.native_step import NativeStep
from dualpace.testing.gold import tiny_model

CPU = torch.device("cpu")
ROWS = 6
LENGTH = 20


class Bench:
    """A tiny model over random KV, whose head can be exchanged."""

    def __init__(self, weights: str = "float32") -> None:
        self._factory = NativeLinearFactory(2, weights=weights)
        self.decoder: Decoder = load_decoder(
            open_checkpoint(tiny_model("llama3_rope")),
            dtype=torch.float32,
            device=CPU,
            linear=self._factory,
        )
        self.vocab = self.decoder.config.vocab_size
        self.hidden = self.decoder.config.hidden_size
        self.pool = KvPool.allocate(
            self.decoder.config, ROWS * 2, 16, dtype=torch.float32, device=CPU
        )
        generator = torch.Generator().manual_seed(3)
        self.pool.tensor.copy_(torch.randn(self.pool.tensor.shape, generator=generator))
        self._tables = np.arange(ROWS * 2, dtype=np.int32).reshape(ROWS, 2)

    def take_head(self, weight: torch.Tensor) -> None:
        head = self._factory(weight, None)
        self.decoder.ends = replace(self.decoder.ends, output_head=head)

    def step(self, *, screen_head: bool = True) -> NativeStep:
        return NativeStep(self.decoder, self.pool, self._tables, 2, screen_head=screen_head)

    def batch(self, wanted: list[bool] | None) -> DecodeBatch:
        rows = np.arange(ROWS if wanted is None else len(wanted), dtype=np.int32)
        return DecodeBatch(
            token_ids=rows.astype(np.int64) + 5,
            rows=rows,
            lengths=np.full(len(rows), LENGTH, np.int32),
            wanted=None if wanted is None else np.array(wanted),
        )

    def check(self, wanted: list[bool]) -> None:
        """What is told with and without the screen is the same, to the last bit."""
        exact = self.step(screen_head=False)(self.batch(None))
        screened = self.step()(self.batch(wanted))
        assert exact.best is not None and exact.finite is not None
        assert screened.best is not None and screened.finite is not None
        assert screened.best.tolist() == exact.best.tolist()
        assert screened.finite.tolist() == exact.finite.tolist()
        chosen = [row for row, is_wanted in enumerate(wanted) if is_wanted]
        assert torch.equal(screened.values[chosen].nan_to_num(), exact.values[chosen].nan_to_num())


@given(data=st.data())
# The level is the same in all examples of one test.
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "float16"])
def test_the_greatest_is_the_same_among_all_but_equal_ones(
    level: str, weights: str, data: st.DataObject
) -> None:
    """Heads whose greatest logits differ by a rounding, by nothing, or by what int16 sees."""
    bench = Bench(weights)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1)))
    weight = torch.randn(bench.vocab, bench.hidden, generator=generator)
    bench.take_head(weight)
    best = bench.step(screen_head=False)(bench.batch(None)).best
    assert best is not None
    size = data.draw(st.sampled_from([0.0, 2.0**-23, 2.0**-16, 2.0**-12, 2.0**-8]))
    for row in best.tolist():
        places = torch.randint(0, bench.vocab, (9,), generator=generator)
        noise = 1 + size * torch.randn(9, bench.hidden, generator=generator)
        weight[places] = weight[row] * noise
    bench.take_head(weight * data.draw(st.sampled_from([1e-25, 1.0, 1e25])))
    wanted = data.draw(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
    bench.check(wanted)


@pytest.mark.parametrize("wanted", [[False] * ROWS, [True, False] * (ROWS // 2)])
def test_rows_and_heads_that_are_nothing_or_too_much(level: str, wanted: list[bool]) -> None:
    bench = Bench()
    bench.take_head(torch.zeros(bench.vocab, bench.hidden))
    bench.check(wanted)
    # Products that overflow in fp32, of either sign, in some rows' logits.
    bench.take_head(3e37 * torch.randn(bench.vocab, bench.hidden))
    bench.check(wanted)
    # A sequence that is not finite.
    bench.take_head(torch.randn(bench.vocab, bench.hidden))
    bench.pool.tensor[:, 3] = torch.inf
    bench.check(wanted)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_head_that_is_not_finite_has_no_screen(level: str, value: float) -> None:
    bench = Bench()
    weight = torch.randn(bench.vocab, bench.hidden)
    weight[7, 3] = value
    bench.take_head(weight)
    assert bench.step().screen_bytes == 0
    bench.check([False] * ROWS)


def test_who_joins_gets_logits(level: str) -> None:
    bench = Bench()
    expected = bench.step(screen_head=False)(bench.batch(None)).values
    began = bench.batch([False, True, False, False])
    whole = bench.batch(None)
    newcomers = DecodeBatch(
        token_ids=whole.token_ids[4:], rows=whole.rows[4:], lengths=whole.lengths[4:]
    )
    arrivals = [newcomers]
    serve: Callable[[float | None], DecodeBatch | None] = lambda _: (  # noqa: E731
        arrivals.pop() if arrivals else None
    )
    logits = bench.step()(began, Interruption(np.ones(1, np.int32), serve, 2))
    assert torch.equal(logits.values[[1, 4, 5]], expected[[1, 4, 5]])
    assert logits.best is not None
    assert logits.best.tolist() == expected.argmax(-1).tolist()


def test_a_screen_is_made_where_it_is_faster(level: str) -> None:
    assert (Bench().step().screen_bytes > 0) == (narrow_arithmetic() != "float32")
    assert Bench().step(screen_head=False).screen_bytes == 0
    for weights in ("int8", "int16"):
        assert Bench(weights).step().screen_bytes == 0
