"""Packed linear maps against float64 products of the weights as packed.

The tolerance is the a-priori bound of a dot product in fp32 (Higham, Accuracy and Stability of
Numerical Algorithms, chapter 3): one rounding for each term, a few for scale and bias.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.kernels import (
    WEIGHT_FORMATS,
    PackedLinear,
    holds_exactly,
    multiply_adds,
    narrow_arithmetic,
)
from dualpace.kernels.reference import UNIT_ROUNDOFF
from tests.kernels.conftest import runnable

ROUNDED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


QUANTUM_INPUTS, LARGEST_QUANTUM = 32, 8191


def in_quanta(x: torch.Tensor) -> torch.Tensor:
    """x [rows, inputs] as int16 arithmetic sees it: whole quanta of each 32 inputs' largest.

    As the kernels compute it, in fp32, each step rounded to nearest.
    """
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % QUANTUM_INPUTS))
    groups = padded.view(len(x), padded.shape[1] // QUANTUM_INPUTS, QUANTUM_INPUTS)
    largest = groups.abs().amax(dim=2, keepdim=True)
    # Not a number by a tensor: torch would multiply by the inverse.
    inverse = torch.full_like(largest, LARGEST_QUANTUM) / largest
    quanta = (groups * inverse).nan_to_num(nan=0.0).round()
    scaled = quanta.double() * (largest / LARGEST_QUANTUM).double()
    return scaled.view(padded.shape)[:, : x.shape[1]]


@dataclass(frozen=True)
class Case:
    """One product, and what it must be."""

    x: torch.Tensor
    packed: PackedLinear
    bias: torch.Tensor | None

    def run(self, level: str, *, rounding: bool = False, num_threads: int = 2) -> torch.Tensor:
        out = torch.full((len(self.x), self.packed.outputs), torch.nan)
        self.packed.multiply(self.x, out, rounding=rounding, num_threads=num_threads, isa=level)
        return out

    def weights(self) -> torch.Tensor:
        weights = torch.empty(self.packed.outputs, self.packed.inputs)
        self.packed.unpack(weights)
        return weights.double()

    def check(self, out: torch.Tensor, arithmetic: str = "float32") -> None:
        """Rounded activations are known to the last bit; what is left is fp32's rounding."""
        as_seen = {"float32": self.x, "bfloat16": self.x.bfloat16(), "int16": in_quanta(self.x)}
        x = as_seen[arithmetic].double()
        weights = self.weights()
        expected = x @ weights.T
        magnitude = x.abs() @ weights.abs().T
        if self.bias is not None:
            expected += self.bias.double()
            magnitude += self.bias.double().abs()
        bound = 1.01 * (self.packed.inputs + 4) * UNIT_ROUNDOFF * magnitude + 2.0**-120
        error = (out.double() - expected).abs()
        assert (error <= bound).all(), f"{error.max()} against {bound.max()} allowed"


def make_case(
    rows: int, outputs: int, inputs: int, format_: str, group: int = 0, *, bias: bool, seed: int = 0
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    biases = torch.randn(outputs, generator=generator) if bias else None
    packed = PackedLinear(weight, biases, format=format_, group=group, num_threads=2)
    return Case(torch.randn(rows, inputs, generator=generator), packed, biases)


@st.composite
def cases(draw: st.DrawFn, format_: str, group: int | None = None) -> Case:
    if group is None:
        group = draw(st.sampled_from([0, 16, 32, 64, 128])) if format_ == "int8" else 0
    inputs = 2 * draw(st.integers(1, 400)) - (0 if format_ == "bfloat16" else draw(st.booleans()))
    return make_case(
        draw(st.integers(0, 60)),
        draw(st.integers(1, 120)),
        inputs,
        format_,
        group,
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@pytest.mark.parametrize("format_", WEIGHT_FORMATS)
@given(data=st.data(), num_threads=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_agrees_with_float64(
    level: str, format_: str, data: st.DataObject, num_threads: int
) -> None:
    case = data.draw(cases(format_))
    out = case.run(level, num_threads=num_threads)
    case.check(out, "int16" if format_ == "int16" else "float32")


def arithmetic_of(level: str, packed: PackedLinear, group: int) -> str:
    """How products with rounded activations are computed."""
    if packed.format == "int16":
        return "int16"
    narrow = narrow_arithmetic(level)
    if packed.format == "bfloat16":
        return narrow if narrow == "bfloat16" else "float32"
    if packed.format != "int8" or packed.inputs % 2 != 0:
        return "float32"
    # The portable tiles stand on vectors without bfloat16 arithmetic.
    byte = "int16" if level == "portable-amxbf16" else narrow
    whole_groups = group % QUANTUM_INPUTS == 0 or group >= packed.inputs
    return byte if byte != "int16" or whole_groups else "float32"


@pytest.mark.parametrize("format_", WEIGHT_FORMATS)
@pytest.mark.parametrize("group", [0, 16, 48, 64])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_narrow_arithmetic_rounds_activations_and_nothing_else(
    level: str, format_: str, group: int, data: st.DataObject
) -> None:
    group = group if format_ == "int8" else 0
    case = data.draw(cases(format_, group))
    case.check(case.run(level, rounding=True), arithmetic_of(level, case.packed, group))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 11, 12, 13, 25, 256, 257, 600])
def test_every_number_of_rows_around_the_blocks(level: str, rows: int) -> None:
    case = make_case(rows, 40, 70, "float32", bias=True)
    case.check(case.run(level))


@pytest.mark.parametrize("format_", WEIGHT_FORMATS)
@pytest.mark.parametrize("rounding", [False, True])
def test_a_row_depends_on_itself_alone(level: str, format_: str, rounding: bool) -> None:
    case = make_case(70, 100, 1100, format_, bias=True)
    whole = case.run(level, rounding=rounding)
    for rows in (slice(0, 1), slice(3, 11), slice(20, 70)):
        part = Case(case.x[rows].contiguous(), case.packed, case.bias)
        for num_threads in (1, 2):
            assert torch.equal(
                part.run(level, rounding=rounding, num_threads=num_threads), whole[rows]
            )


@pytest.mark.parametrize("format_", WEIGHT_FORMATS)
def test_one_instruction_for_whole_numbers_changes_nothing(format_: str) -> None:
    """avx512vnni is avx512 but for sums of whole numbers, which are exact."""
    one, two = runnable("avx512vnni"), runnable("avx512")
    for rows, group in ((1, 0), (7, 64), (70, 0)):
        case = make_case(rows, 100, 1100, format_, group if format_ == "int8" else 0, bias=True)
        for rounding in (False, True):
            assert torch.equal(case.run(one, rounding=rounding), case.run(two, rounding=rounding))


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format_", ["float32", "bfloat16", "float16"])
def test_weights_are_rounded_to_nearest(source: torch.dtype, format_: str) -> None:
    """Every bit pattern of the 16-bit types, and numbers between those."""
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    halves = torch.cat(
        [patterns.view(torch.float16).float(), patterns.view(torch.bfloat16).float()]
    )
    values = torch.cat([halves, halves * 1.0009765, halves * 1.0000001]).to(source).view(-1, 512)
    packed = PackedLinear(values, format=format_, num_threads=1)
    unpacked = torch.empty(values.shape)
    packed.unpack(unpacked)
    expected = values.to(ROUNDED[format_]).float()
    assert torch.equal(unpacked.nan_to_num(nan=1234.5), expected.nan_to_num(nan=1234.5))


@pytest.mark.parametrize("group", [0, 32])
def test_int8_is_within_half_a_quantum(group: int) -> None:
    weight = torch.randn(37, 100)
    weight[3] = 0.0
    packed = PackedLinear(weight, format="int8", group=group, num_threads=1)
    unpacked = torch.empty(weight.shape)
    packed.unpack(unpacked)
    for begin in range(0, 100, group or 100):
        columns = slice(begin, begin + (group or 100))
        quantum = weight[:, columns].abs().amax(dim=1, keepdim=True) / 127
        # The quotient and the product are rounded as well.
        assert ((unpacked - weight)[:, columns].abs() <= 0.50002 * quantum).all()


def test_int16_is_within_half_a_quantum() -> None:
    weight = torch.randn(37, 100) * torch.logspace(-20, 20, 37)[:, None]
    weight[3] = 0.0
    weight[4] = 1e-38
    packed = PackedLinear(weight, format="int16", num_threads=1)
    unpacked = torch.empty(weight.shape)
    packed.unpack(unpacked)
    quantum = weight.abs().amax(dim=1, keepdim=True) / LARGEST_QUANTUM
    # The quotient and the product are rounded as well. What is next to nothing becomes nothing.
    assert ((unpacked - weight).abs() <= 0.5005 * quantum + 1e-30).all()
    assert (unpacked[3:5] == 0).all()


@pytest.mark.parametrize("size", [1e-38, 1e-31, 1e-29, 1.0, 1e30])
def test_int16_activations_of_any_size(level: str, size: float) -> None:
    """Groups of inputs differ in size, too; the largest quanta of both signs fill a sum."""
    case = make_case(7, 40, 96, "int16", bias=False)
    case.x[:, :32] *= 1e-3
    case.x[2:4] = torch.tensor([1.0, -1.0])[:, None]
    case.x.mul_(size)
    out = case.run(level)
    if size < 1e-30:
        assert (out == 0).all()
    elif size < 1e-20:
        assert (out - case.x @ case.weights().float().T).abs().max() < 1e-3 * size * 96
    else:
        case.check(out, "int16")


def test_the_largest_sums_of_int16_do_not_overflow(level: str) -> None:
    """All quanta at their largest, of equal and of opposite signs."""
    weight = torch.ones(32, 64)
    weight[1::2] = -1
    packed = PackedLinear(weight, format="int16", num_threads=1)
    case = Case(torch.stack([torch.ones(64), -torch.ones(64)]), packed, None)
    expected = case.x @ weight.T
    assert (case.run(level) - expected).abs().max() < 64 * 2.0**-12


def test_rounding_in_whole_numbers_loses_less_than_bfloat16(level: str) -> None:
    """What `auto` relies on: weights and activations together, in the norm of the result."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(50, 576, generator=generator)
    x[:, 7] *= 40  # as some channels of every language model are
    weight = torch.randn(300, 576, generator=generator).bfloat16()
    exact = x.double() @ weight.double().T
    case = Case(x, PackedLinear(weight, format="int16", num_threads=1), None)
    error = (case.run(level).double() - exact).norm()
    assert 4 * error < (x.bfloat16().double() @ weight.double().T - exact).norm()


def test_exactness_is_told_for_each_format() -> None:
    weight = torch.randn(30, 64)
    for format_, dtype in ROUNDED.items():
        rounded = weight.to(dtype)
        assert holds_exactly(rounded, format=format_, num_threads=2)
        assert holds_exactly(weight, format=format_, num_threads=2) is (format_ == "float32")
        assert not holds_exactly(rounded, format="int8", num_threads=2)
        assert not holds_exactly(rounded, format="int16", num_threads=2)


@pytest.mark.parametrize("format_", ["float32", "int16"])
def test_what_is_not_finite_stays_in_its_row(level: str, format_: str) -> None:
    case = make_case(9, 33, 64, format_, bias=False)
    case.x[4, 10] = torch.inf
    case.x[7, 63] = torch.nan
    out = case.run(level)
    assert not out[[4, 7]].isfinite().any()
    assert out[[0, 1, 2, 3, 5, 6, 8]].isfinite().all()


def test_the_probe_counts_operations(level: str) -> None:
    one = multiply_adds(1000, num_threads=1, isa=level)
    assert one > 0
    assert multiply_adds(2000, num_threads=1, isa=level) == 2 * one
    assert multiply_adds(1000, num_threads=1, arithmetic="int16", isa=level) == 2 * one
    native = multiply_adds(1000, num_threads=1, arithmetic="bfloat16", isa=level)
    if level.endswith("amxbf16"):
        # Four products of 16 x 32 by 32 x 16 a step.
        assert native == 1000 * 4 * 2 * 16 * 32 * 16
    else:
        assert native == (2 * one if level.endswith("bf16") else 0)


def test_wrong_arguments_are_named() -> None:
    weight = torch.zeros(4, 6)
    packed = PackedLinear(weight, format="float32", num_threads=1)
    with pytest.raises(ValueError, match="format: 'int4' is not one of float32, bfloat16, "):
        PackedLinear(weight, format="int4", num_threads=1)
    with pytest.raises(ValueError, match=r"group: is 24, it must be 0 .* or a multiple of 16"):
        PackedLinear(weight, format="int8", group=24, num_threads=1)
    with pytest.raises(ValueError, match="group: only int8 has groups"):
        PackedLinear(weight, format="float32", group=16, num_threads=1)
    with pytest.raises(ValueError, match="weight: bfloat16 needs an even number of inputs, not 5"):
        PackedLinear(torch.zeros(4, 5), format="bfloat16", num_threads=1)
    with pytest.raises(ValueError, match=r"weight: has shape \[0, 6\], both must be positive"):
        PackedLinear(weight[:0], format="float32", num_threads=1)
    with pytest.raises(ValueError, match="weight: is int32"):
        PackedLinear(weight.int(), format="float32", num_threads=1)
    with pytest.raises(ValueError, match=r"bias: .*outputs"):
        PackedLinear(weight, torch.zeros(5), format="float32", num_threads=1)
    with pytest.raises(ValueError, match=r"x: .*inputs"):
        packed.multiply(torch.zeros(2, 5), torch.zeros(2, 4), num_threads=1)
    with pytest.raises(ValueError, match=r"out: .*rows"):
        packed.multiply(torch.zeros(2, 6), torch.zeros(3, 4), num_threads=1)
    with pytest.raises(ValueError, match="arithmetic: 'int4' is not one of float32, bfloat16, int"):
        multiply_adds(1, num_threads=1, arithmetic="int4")
    with pytest.raises(ValueError, match="num_threads: is 0"):
        packed.multiply(torch.zeros(2, 6), torch.zeros(2, 4), num_threads=0)
    with pytest.raises(ValueError, match=r"out: .*outputs"):
        packed.unpack(torch.zeros(5, 6))
