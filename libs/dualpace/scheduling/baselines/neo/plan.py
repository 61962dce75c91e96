"""What NEO decides for one iteration."""

from collections.abc import Iterator
from dataclasses import dataclass

from dualpace.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class NeoBatch:
    """One sub-batch, each list in the order that the original holds it."""

    gprf: tuple[Sequence, ...] = ()
    """Prompts whose KV stays on the GPU."""
    cprf: tuple[Sequence, ...] = ()
    """Prompts computed on the GPU, whose KV goes to the CPU."""
    gdec: tuple[Sequence, ...] = ()
    cdec: tuple[Sequence, ...] = ()

    def members(self) -> Iterator[Sequence]:
        """Everyone in it: each gains one token."""
        yield from self.gprf
        yield from self.cprf
        yield from self.gdec
        yield from self.cdec

    @property
    def width(self) -> int:
        """Token rows of its dense stages."""
        prompts = sum(s.num_tokens for s in (*self.gprf, *self.cprf))
        return prompts + len(self.gdec) + len(self.cdec)


@dataclass(frozen=True, slots=True)
class NeoPlan:
    """No batch, one (sequential), or two that take turns on GPU and CPU (pipelined)."""

    batches: tuple[NeoBatch, ...] = ()
    swap_out: tuple[Sequence, ...] = ()
    swap_in: tuple[Sequence, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.batches
