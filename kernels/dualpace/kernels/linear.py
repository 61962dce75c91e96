"""Linear maps with packed weights, and the arithmetic limit that they are held against.

Knows nothing of models: shapes and formats are the caller's.
"""

from dualpace.kernels import _native
from dualpace.kernels.attention import HostArray

WEIGHT_FORMATS = ("float32", "bfloat16", "float16", "int8", "int16")
"""Formats in which weights can be packed."""


class PackedLinear:
    """out = x Wᵀ + b, sums in fp32 whatever the weights are held in.

    Weights are widened to fp32 in registers. int8 weights are symmetric: a group's largest becomes
    127 or -127, and each group of inputs of an output has one fp32 scale. The packed weights lie on
    huge pages where the operating system gives them. Calls may come from any thread.

    int16 weights are multiplied in whole numbers, without bfloat16 arithmetic the fastest way there
    is: weights of 14 bits, sign included, with one scale for each output; activations of as many,
    with one scale for each row and 32 inputs; sums of 32 inputs in 32 bits, those in fp32. Each
    number is off by at most 2^-14 of the largest that it shares a scale with. (In bfloat16 that
    largest itself is off by up to 2^-9 of it.)
    """

    def __init__(
        self,
        weight: HostArray,
        bias: HostArray | None = None,
        *,
        format: str,  # noqa: A002 - the word of the field
        group: int = 0,
        num_threads: int,
    ) -> None:
        """Pack a copy of weight [outputs, inputs] and bias [outputs].

        Arguments:
            weight: float32, float16 or bfloat16; rounded to nearest where `format` is narrower.
            bias: float32, or None.
            format: One of WEIGHT_FORMATS. bfloat16 needs an even number of inputs. int16 is a way
                to multiply as well, see above.
            group: Inputs that share a scale in int8, a multiple of 16; 0: all of an output's.
            num_threads: Threads that pack.

        Raises ValueError naming the argument, its size or value, and what is allowed.

        """
        self.native = _native.PackedLinear(
            weight, bias, format=format, group=group, num_threads=num_threads
        )

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.native.outputs

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.native.inputs

    @property
    def format(self) -> str:
        """Format of the packed weights."""
        return self.native.format

    @property
    def num_bytes(self) -> int:
        """Size of the packed weights and scales."""
        return self.native.num_bytes

    def multiply(
        self,
        x: HostArray,
        out: HostArray,
        *,
        num_threads: int,
        rounding: bool = False,
        isa: str | None = None,
    ) -> None:
        """Write x Wᵀ + b to `out`.

        For a given instruction set a row of `out` depends on its own row of `x` alone, to the last
        bit: neither on `num_threads` nor on the other rows.

        Arguments:
            x: [rows, inputs] float32.
            out: [rows, outputs] float32, overwritten. Must not overlap x.
            num_threads: Threads to share the work, the caller's included; see
                `paged_attention_decode`.
            rounding: Allow x to be rounded to bfloat16, where the weights are of that type, or int8
                with an even number of inputs, and the instruction set multiplies it natively
                (avx512bf16, amxbf16).
            isa: As in `paged_attention_decode`.

        Raises ValueError naming the argument, its size or value, and what is allowed.

        """
        self.native.multiply(x, out, rounding=rounding, num_threads=num_threads, isa=isa)

    def unpack(self, out: HostArray) -> None:
        """Write the weights as they are used to `out`, [outputs, inputs] float32."""
        self.native.unpack(out)


def holds_exactly(weight: HostArray, *, format: str, num_threads: int) -> bool:  # noqa: A002
    """Return whether every weight [outputs, inputs] is a value of `format`.

    False for int8 and int16.
    """
    return _native.holds_exactly(weight, format=format, num_threads=num_threads)


def multiply_adds(
    steps: int, *, num_threads: int, arithmetic: str = "float32", isa: str | None = None
) -> int:
    """Do nothing but multiply-adds on each thread and return how many operations, two for each.

    Time a call to get the limit of an arithmetic: float32, bfloat16 (0 where the instruction set
    has none) or int16, as of PackedLinear.
    """
    return _native.multiply_adds(steps, arithmetic=arithmetic, num_threads=num_threads, isa=isa)


def narrow_arithmetic(isa: str | None = None) -> str:
    """Return the fastest arithmetic that is at least as close as bfloat16.

    bfloat16 where the instruction set has it, int16 where that is faster than float32, or float32.
    """
    return _native.narrow_arithmetic(isa=isa)


def packed_memory() -> tuple[int, int]:
    """Return the bytes held for packed weights, and how many of them lie on huge pages."""
    return _native.huge_memory_use()
