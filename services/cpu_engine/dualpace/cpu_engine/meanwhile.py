"""What an engine does in the middle of its iterations. Knows plans, and no tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualpace.scheduling.plan import HostRow


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Called by whoever executes a plan, between two layers."""

    flag: npt.NDArray[np.int32]
    """[1]: not zero while there is something to do."""
    serve: Callable[[float | None], Sequence[HostRow]]
    """Does it, and sets the flag to zero; returns the rows of those who join the iteration.

    Is told which share of its layers they have to catch up with; None, and nobody does, where the
    iteration cannot be joined any more."""
    most_newcomers: int = 0
    """That join one iteration."""
