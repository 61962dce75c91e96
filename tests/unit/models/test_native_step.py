"""The native step computes what the decoder's stages in torch compute, for every model it takes."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from threading import Event, Timer

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("dualpace.kernels", reason="the native kernels are not built")

from dualpace.checkpoint import open_checkpoint
from dualpace.kernels import capabilities
from dualpace.models import Decoder, KvPool, TorchPagedAttention, load_decoder, native_step
from dualpace.models.host_step import (
    DecodeBatch,
    HostStep,
    Interruption,
    StagedStep,
    UnsupportedModelError,
    host_step,
)
from dualpace.models.native_linear import NativeLinear, NativeLinearFactory
from dualpace.models.native_step import NativeStep
from dualpace.testing.gold import tiny_model, tiny_model_names

CPU = torch.device("cpu")
LENGTHS = [1, 5, 16, 17, 40, 63]
MIXTURES = {"mixtral", "qwen3_moe"}
DENSE = [name for name in tiny_model_names() if name not in MIXTURES]


@cache
def decoder(model: str, dtype: torch.dtype = torch.float32, weights: str = "float32") -> Decoder:
    linear = NativeLinearFactory(2, weights=weights)
    return load_decoder(open_checkpoint(tiny_model(model)), dtype=dtype, device=CPU, linear=linear)


def make_pool(model: Decoder, dtype: torch.dtype) -> tuple[KvPool, np.ndarray]:
    """Random KV where sequences have been, NaN elsewhere; scattered blocks."""
    generator = torch.Generator().manual_seed(1)
    blocks = len(LENGTHS) * 4
    pool = KvPool.allocate(model.config, blocks + 1, 16, dtype=dtype, device=CPU)
    tables = torch.randperm(blocks, generator=generator).to(torch.int32).view(len(LENGTHS), 4)
    pool.tensor.fill_(torch.nan)
    for row, length in enumerate(LENGTHS):
        for position in range(length - 1):
            block = tables[row, position // 16]
            slot = pool.tensor[:, block, :, :, position % 16]
            slot.copy_(torch.randn(slot.shape, generator=generator))
    return pool, tables.numpy()


def batch_of(vocab: int, rows: Sequence[int]) -> DecodeBatch:
    tokens = np.array([(7 * row + 3) % vocab for row in rows], dtype=np.int64)
    lengths = np.array([LENGTHS[row] for row in rows], dtype=np.int32)
    return DecodeBatch(token_ids=tokens, rows=np.array(rows, np.int32), lengths=lengths)


def run(
    step: HostStep, vocab: int, rows: Sequence[int], interruption: Interruption | None = None
) -> torch.Tensor:
    logits = step(batch_of(vocab, rows), interruption)
    if logits.best is not None and logits.finite is not None:
        assert logits.best.tolist() == logits.values.argmax(-1).tolist()
        assert logits.finite.all()
    return logits.values.clone()


@pytest.mark.parametrize("model", DENSE)
def test_equals_the_stages_in_torch(model: str, level: str) -> None:
    native = decoder(model)
    every = list(range(len(LENGTHS)))
    (pool, tables), (other, _) = (make_pool(native, torch.float32) for _ in range(2))
    reference = load_decoder(open_checkpoint(tiny_model(model)), dtype=torch.float32, device=CPU)
    expected = run(
        StagedStep(reference, other, tables, TorchPagedAttention()), native.config.vocab_size, every
    )
    got = run(NativeStep(native, pool, tables, 2), native.config.vocab_size, every)
    assert torch.allclose(got, expected, rtol=0, atol=2e-4), (got - expected).abs().max()
    # The new tokens' keys and values are there, and nothing else was touched.
    assert torch.equal(pool.tensor.isnan(), other.tensor.isnan())
    assert torch.allclose(pool.tensor, other.tensor, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("weights", ["float32", "int16"])
@pytest.mark.parametrize("model", ["llama3_rope", "gemma3"])
def test_a_row_depends_on_its_own_sequence_alone(model: str, weights: str, level: str) -> None:
    """To the last bit, whatever the batch, the number of threads and the groups of rows."""
    native = decoder(model, weights=weights)
    vocab = native.config.vocab_size
    every = [0, 1, 2, 3, 4, 5]
    pool, tables = make_pool(native, torch.float32)
    together = run(NativeStep(native, pool, tables, 2), vocab, every)
    for rows, num_threads, turns in (
        ([4, 2], 1, 0),
        ([4], 2, 0),
        ([2, 3], 2, 2),
        ([5, 3, 0, 1, 4], 2, 1),
        ([1, 4, 5], 1, 1),
        ([4], 2, 1),
    ):
        pool, tables = make_pool(native, torch.float32)
        step = NativeStep(native, pool, tables, num_threads, rows_in_turns=turns)
        for row, logits in zip(rows, run(step, vocab, rows), strict=True):
            assert torch.equal(logits, together[row])


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model", ["llama3_rope", "qwen3"])
def test_keys_and_values_are_rounded_as_torch_rounds_them(
    model: str, kv_dtype: torch.dtype
) -> None:
    native = decoder(model)
    (pool, tables), (other, _) = (make_pool(native, kv_dtype) for _ in range(2))
    every = list(range(len(LENGTHS)))
    vocab = native.config.vocab_size
    expected = run(StagedStep(native, other, tables, TorchPagedAttention()), vocab, every)
    got = run(NativeStep(native, pool, tables, 2), vocab, every)
    assert torch.allclose(got, expected, rtol=0, atol=2e-2)
    # The first layer's keys and values differ by no more than one rounding.
    first, other_first = pool.tensor[0].float(), other.tensor[0].float()
    assert torch.allclose(first, other_first, rtol=2**-7, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("weights", ["bfloat16", "int16"])
def test_bfloat16_stays_near_fp32(weights: str, level: str) -> None:
    exact, rounded = decoder("llama3_rope"), decoder("llama3_rope", torch.bfloat16, weights)
    every = list(range(len(LENGTHS)))
    vocab = exact.config.vocab_size
    outputs = []
    for model, dtype in ((exact, torch.float32), (rounded, torch.bfloat16)):
        pool, tables = make_pool(model, dtype)
        outputs.append(run(NativeStep(model, pool, tables, 2), vocab, every).log_softmax(-1))
    # bfloat16 keeps eight bits: weights, keys and values alone move a logit by up to 2^-8 of what
    # it is summed from.
    assert (outputs[0] - outputs[1]).abs().max() < 0.15


def test_auto_packs_the_narrowest_format_that_changes_nothing() -> None:
    factory = NativeLinearFactory(1)
    weight = torch.randn(32, 64)
    for values, expected in (
        (weight, "float32"),
        (weight.bfloat16().float(), "bfloat16"),
        (weight.half().float(), "float16"),
        (weight.half(), "float16"),
    ):
        linear = factory(values, None)
        assert linear.packed.format == expected
        unpacked = torch.empty(values.shape)
        linear.packed.unpack(unpacked)
        assert torch.equal(unpacked, values.float())
    odd = (1e20 * weight[:, :63]).bfloat16().float()
    assert factory(odd, None).packed.format == "float32"


def test_auto_packs_bfloat16_for_the_processor_s_arithmetic(level: str) -> None:
    snapshot = capabilities()
    whole = snapshot.isa in {"avx2", "avx512", "avx512vnni"}
    assert level in {snapshot.isa, snapshot.passed_over}
    expected = "int16" if whole else "bfloat16"
    weight = torch.randn(32, 64)
    packed = NativeLinearFactory(1)(weight.bfloat16(), None).packed
    assert packed.format == expected
    # Computed with in fp32, weights stay what they are.
    assert NativeLinearFactory(1)(weight.bfloat16().float(), None).packed.format == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_native_linear_keeps_the_caller_s_dtype(dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(32, 64), torch.randn(32), torch.randn(5, 64).to(dtype)
    linear: NativeLinear = NativeLinearFactory(2, weights="float32")(weight, bias)
    out = linear(x)
    assert out.dtype is dtype
    expected = torch.nn.functional.linear(x.float(), weight, bias)
    assert torch.allclose(out.float(), expected, atol=0.1 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("model", sorted(MIXTURES))
def test_mixtures_of_experts_run_in_stages(model: str) -> None:
    native = decoder(model)
    pool, tables = make_pool(native, torch.float32)
    with pytest.raises(UnsupportedModelError, match="mixtures of experts"):
        NativeStep(native, pool, tables, 2)
    step = host_step(native, pool, tables, TorchPagedAttention(), num_threads=2)
    assert isinstance(step, StagedStep)
    assert run(step, native.config.vocab_size, [2, 5]).isfinite().all()


def test_wrong_batches_are_named_and_write_nothing() -> None:
    native = decoder("llama3_rope")
    pool, tables = make_pool(native, torch.float32)
    step = NativeStep(native, pool, tables, 2)
    before = pool.tensor.clone()
    vocab, positions = native.config.vocab_size, native.max_positions

    def batch(token: int, row: int, length: int) -> DecodeBatch:
        return DecodeBatch(
            token_ids=np.array([1, token]),
            rows=np.array([0, row], np.int32),
            lengths=np.array([1, length], np.int32),
        )

    for wrong, message in (
        (batch(vocab, 1, 1), r"token_ids\[1\]: is"),
        (batch(-1, 1, 1), r"token_ids\[1\]: is -1"),
        (batch(1, 99, 1), r"rows\[1\]: is 99"),
        (batch(1, 1, 0), r"lengths\[1\]: is 0, it must be from 1"),
        (batch(1, 1, positions + 1), r"lengths\[1\]: is"),
        (batch(1, 1, 65), r"lengths\[1\]: is 65, block_tables has room for 64"),
    ):
        with pytest.raises(ValueError, match=message):
            step(wrong)
    assert torch.equal(before.nan_to_num(), pool.tensor.nan_to_num())


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("form", ["native", "turns", "staged"])
def test_a_step_is_interrupted_between_layers_and_computes_the_same(
    form: str, num_threads: int
) -> None:
    model = decoder("llama3_rope")
    vocab = model.config.vocab_size
    every = list(range(len(LENGTHS)))

    def make_step() -> HostStep:
        pool, tables = make_pool(model, torch.float32)
        if form == "staged":
            return StagedStep(model, pool, tables, TorchPagedAttention())
        return NativeStep(model, pool, tables, num_threads, rows_in_turns=2 * (form == "turns"))

    expected = run(make_step(), vocab, every)
    for wanted, most, times in ((0, 99, 0), (1, 1, 1), (1, 99, model.num_layers + 1)):
        flag = np.array([wanted], np.int32)
        served: list[float] = []

        def serve(_, flag=flag, served=served, most=most) -> None:  # type: ignore[no-untyped-def]
            served.append(torch.ones(3).sum().item())  # the interpreter, and torch, are there
            flag[0] = len(served) < most

        assert torch.equal(run(make_step(), vocab, every, Interruption(flag, serve)), expected)
        assert len(served) == times


@given(data=st.data())
@settings(max_examples=25)
def test_who_joins_between_two_layers_gets_what_it_would_have_had_from_the_start(
    data: st.DataObject,
) -> None:
    """And so do the others: to the last bit, keys and values included."""
    model = decoder(data.draw(st.sampled_from(["llama3_rope", "gemma3", "qwen3"])))
    vocab, every = model.config.vocab_size, data.draw(st.permutations(range(len(LENGTHS))))
    begins = data.draw(st.integers(1, len(every)))
    arrivals: dict[int, list[int]] = {}
    for row in every[begins:]:
        arrivals.setdefault(data.draw(st.integers(0, model.num_layers)), []).append(row)
    joined = [row for layer in sorted(arrivals) for row in arrivals[layer]]
    num_threads = data.draw(st.integers(1, 3))
    (pool, tables), (other, _) = (make_pool(model, torch.float32) for _ in range(2))
    expected = run(NativeStep(model, other, tables, 2), vocab, [*every[:begins], *joined])
    flag, told = np.ones(1, np.int32), []

    def serve(share: float | None) -> DecodeBatch | None:
        told.append(share)
        came = arrivals.get(len(told) - 1)
        return None if came is None else batch_of(vocab, came)

    room = len(joined) + data.draw(st.integers(0, 2))
    step = NativeStep(
        model, pool, tables, num_threads, rows_in_turns=data.draw(st.sampled_from([0, 1, 3]))
    )
    assert torch.equal(run(step, vocab, every[:begins], Interruption(flag, serve, room)), expected)
    assert torch.equal(pool.tensor.nan_to_num(), other.tensor.nan_to_num())
    layers = [layer / model.num_layers for layer in range(model.num_layers + 1)]
    behind = [share for share in told if share is not None]
    assert behind == layers[: len(behind)]
    assert told[len(behind) :] == [None] * (len(layers) - len(behind))
    assert len(behind) == (len(layers) if room > len(joined) else max(arrivals, default=-1) + 1)


def test_more_than_there_is_room_for_do_not_join() -> None:
    model = decoder("llama3_rope")
    vocab = model.config.vocab_size
    pool, tables = make_pool(model, torch.float32)
    step, flag = NativeStep(model, pool, tables, 2), np.ones(1, np.int32)
    for wrong, message in (
        (batch_of(vocab, [1, 2, 3]), "newcomers: are 3, there is room for 2"),
        (replace(batch_of(vocab, [1]), rows=np.zeros(2, np.int32)), "rows of newcomers: "),
        (replace(batch_of(vocab, [1]), lengths=np.zeros(1, np.int64)), "lengths of newcomers: "),
        (replace(batch_of(vocab, [1]), token_ids=np.array([vocab])), r"token_ids\[0\]: is"),
    ):

        def serve(_: float | None, wrong: DecodeBatch = wrong) -> DecodeBatch | None:
            return wrong

        with pytest.raises(ValueError, match=message):
            step(batch_of(vocab, [0]), Interruption(flag, serve, 2))
    assert run(step, vocab, [0, 1]).isfinite().all()


@pytest.mark.parametrize("turns", [0, 2])
def test_a_step_is_interrupted_from_another_thread(turns: int) -> None:
    model = decoder("llama3_rope")
    pool, tables = make_pool(model, torch.float32)
    step = NativeStep(model, pool, tables, 2, rows_in_turns=turns)
    flag, ended = np.zeros(1, np.int32), Event()

    def serve(_: float | None) -> None:
        flag[0] = 0
        ended.set()

    def ring() -> None:
        flag[0] = 1

    timer = Timer(0.02, ring)
    timer.start()
    deadline = time.monotonic() + 20
    while not ended.is_set():
        run(step, model.config.vocab_size, [2, 3], Interruption(flag, serve))
        assert time.monotonic() < deadline
    timer.join()


def test_what_an_interruption_raises_comes_out_and_the_step_can_go_on() -> None:
    model = decoder("llama3_rope")
    pool, tables = make_pool(model, torch.float32)
    step, flag = NativeStep(model, pool, tables, 2), np.ones(1, np.int32)
    calls = []

    def serve(_: float | None) -> None:
        calls.append(1)
        raise KeyError("seven")

    with pytest.raises(KeyError, match="seven"):
        run(step, model.config.vocab_size, [0, 1], Interruption(flag, serve))
    assert len(calls) == 1
    assert run(step, model.config.vocab_size, [0, 1]).isfinite().all()


def test_rows_take_turns_where_that_pays_on_this_machine() -> None:
    model = decoder("llama3_rope")
    pool, tables = make_pool(model, torch.float32)
    assert NativeStep(model, pool, tables, 2).rows_in_turns == 0
    assert NativeStep(model, pool, tables, 2, rows_in_turns=None).rows_in_turns > 0
    with pytest.raises(ValueError, match="rows_in_turns: is -1, it must be 0 or more"):
        run(NativeStep(model, pool, tables, 2, rows_in_turns=-1), model.config.vocab_size, [0])


def test_a_flag_is_one_word() -> None:
    model = decoder("llama3_rope")
    pool, tables = make_pool(model, torch.float32)
    step = NativeStep(model, pool, tables, 2)
    for wrong in (np.zeros(2, np.int32), np.zeros(1, np.int64)):
        with pytest.raises(ValueError, match="flag: "):
            run(step, model.config.vocab_size, [0], Interruption(wrong, lambda _: None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("weight_bytes", "passes"), [(0, 1), (1 << 40, 0)])
def test_turns_are_left_where_weights_are_more_to_read_than_keys(
    monkeypatch: pytest.MonkeyPatch, weight_bytes: int, passes: int
) -> None:
    monkeypatch.setattr(native_step, "least_rows_in_turns", lambda *_, **__: 2)
    monkeypatch.setattr(native_step, "layer_bytes", lambda _: weight_bytes)
    model = decoder("llama3_rope")
    pool, tables = make_pool(model, torch.float32)
    step = NativeStep(model, pool, tables, 2, rows_in_turns=None)
    assert run(step, model.config.vocab_size, [0, 1, 2]).isfinite().all()
    assert step.passes_in_turns == passes
