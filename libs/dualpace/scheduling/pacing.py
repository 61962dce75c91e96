"""How many prompt tokens an iteration of the GPU computes beside its decodes.

Large chunks bring first tokens early. Small ones cost less: the weights are read for the decodes
anyway, and some tens of prompt rows beside them add little. So prompts are computed at full speed
while every request finds room, and spread over many iterations once requests wait for room: then
nobody's first token comes earlier by hurrying, and device time is what everybody waits for.
"""

from typing import Protocol


class Pacing(Protocol):
    """The policy."""

    def prompt_tokens(self, *, left: int, waiting: bool, blocked: bool, computed: int) -> int:
        """Return how many prompt tokens may be computed in this iteration, at most `left`.

        `waiting`: a request waits for its prefill, and memory is what the device is short of.
        `blocked`: in the last iteration one of them found no room, on the device or on the host.
        `computed`: prompt tokens of that iteration.
        """
        ...


class FullSpeed:
    """As many as the budget allows, always."""

    def prompt_tokens(self, *, left: int, waiting: bool, blocked: bool, computed: int) -> int:
        """Return what is left."""
        del waiting, blocked, computed
        return left


class Spread:
    """Full speed until requests wait for room; then a chunk that keeps pace with the room.

    The chunk shrinks whenever an iteration computed no prompt for want of room: those before it
    were too fast. It grows while room is left, and slowly otherwise. It settles where prefills take
    up room just as it comes free, and hardly an iteration goes without prompt rows.
    """

    def __init__(
        self,
        *,
        least: int = 64,
        most: int = 2048,
        shrink: float = 0.7,
        grow: float = 1.04,
        drift: float = 1.01,
    ) -> None:
        assert 0 < least <= most
        assert shrink < 1.0 < drift <= grow
        self._least = least
        self._most = most
        self._shrink = shrink
        self._grow = grow
        self._drift = drift
        self._chunk = float(most)

    def prompt_tokens(self, *, left: int, waiting: bool, blocked: bool, computed: int) -> int:
        """Return the chunk, or all that is left when nobody waits."""
        if not waiting:
            return left
        hindered = self._drift if computed else self._shrink
        factor = hindered if blocked else self._grow
        self._chunk = min(max(self._chunk * factor, self._least), self._most)
        return min(left, int(self._chunk))
