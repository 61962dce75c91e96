"""Where a request lives, and when it moves.

Asked by the gpu-engine's scheduler, which does the moving.

A placement states wishes; what memory does not allow is not done, and no wish ever makes a request
wait while it holds what another needs. `gpu`, `cpu` and `random:<seed>` depend on nothing but the
request, so that tests can repeat them; `auto` fills the device first and keeps room there for
prefills.
"""

import enum
import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

from dualpace.core.errors import SettingsError
from dualpace.scheduling.gpu_sequence import GpuSequence

MAX_RECALLS_IN_FLIGHT = 2


class Tier(enum.Enum):
    """Whose decode engine a request runs on."""

    GPU = enum.auto()
    HOST = enum.auto()


class NodeView(Protocol):
    """What a placement may look at; live while a plan is being made."""

    @property
    def total_device_blocks(self) -> int:
        """Device blocks in all."""
        ...

    @property
    def free_device_blocks(self) -> int:
        """Device blocks that nobody holds."""
        ...

    @property
    def free_device_slots(self) -> int:
        """Rows of the device batch that nobody holds."""
        ...

    @property
    def total_device_slots(self) -> int:
        """Rows of the device batch in all."""
        ...

    @property
    def shortage(self) -> int:
        """Device blocks lacked by the request at which the last round of admissions stopped."""
        ...

    @property
    def leaving_blocks(self) -> int:
        """Device blocks of requests on their way out."""
        ...

    @property
    def memory_short(self) -> bool:
        """Whether it is memory, not arithmetic, that the device runs out of first."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait for the device."""
        ...

    @property
    def recalls_in_flight(self) -> int:
        """Requests that were called back from the host and have not arrived."""
        ...

    @property
    def recalled_blocks(self) -> int:
        """Device blocks that those will take, at least."""
        ...

    def device_blocks_for(self, num_tokens: int) -> int:
        """Return how many device blocks hold `num_tokens` tokens."""
        ...

    def host_has_room(self, num_tokens: int) -> bool:
        """Whether the host would grant a reservation for `num_tokens`."""
        ...


class Placement(Protocol):
    """The policy: which tier, and when to change it."""

    def admit(self, sequence: GpuSequence, view: NodeView) -> Tier | None:
        """Choose the tier on which a waiting request is to decode; None: it waits."""
        ...

    def movers(self, decodes: Sequence[GpuSequence], view: NodeView) -> list[GpuSequence]:
        """Choose those of the requests decoding on the device, oldest first, that are to leave.

        Asked in every iteration: one that is chosen no more, before it has left, stays.
        """
        ...

    def return_at(self, sequence: GpuSequence) -> int | None:
        """How many tokens the host may bring a request to before giving it back; None: no bound."""
        ...

    def recall(self, away: Sequence[GpuSequence], view: NodeView) -> GpuSequence | None:
        """Choose a request on the host to call back to the device now; `away` is oldest first."""
        ...


class GpuOnly:
    """Everything decodes on the device."""

    def admit(self, sequence: GpuSequence, view: NodeView) -> Tier | None:
        """Choose the device."""
        del sequence, view
        return Tier.GPU

    def movers(self, decodes: Sequence[GpuSequence], view: NodeView) -> list[GpuSequence]:
        """None."""
        del decodes, view
        return []

    def return_at(self, sequence: GpuSequence) -> int | None:
        """No bound."""
        del sequence
        return None

    def recall(self, away: Sequence[GpuSequence], view: NodeView) -> GpuSequence | None:
        """Never."""
        del away, view
        return None


class CpuOnly(GpuOnly):
    """Everything is prefilled on the device and decodes on the host."""

    def admit(self, sequence: GpuSequence, view: NodeView) -> Tier | None:
        """Choose the host; wait while it is full."""
        del sequence, view
        return Tier.HOST


class RandomMoves(GpuOnly):
    """Moves at random token positions, both ways: for tests of the handoff.

    A position is a turning point with probability 1/4, and a tier is drawn there; other positions
    have the tier of the turning point before them. Draws are hashes of the seed, the request's
    sampling seed, the end of its prompt and the position: they depend on no clock and no other
    request. Where the other side has no room, a request stays.
    """

    _LOOK_BACK = 8
    """The position this far back counts as a turning point: no draw costs more than this."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def admit(self, sequence: GpuSequence, view: NodeView) -> Tier | None:
        """Choose the tier of the first token that is decoded.

        A prefill, if one is due, makes the one before.
        """
        following = sequence.num_tokens + (0 if sequence.kv_on_host else 1)
        if self._tier(sequence, following) is Tier.GPU:
            return Tier.GPU
        return Tier.HOST if self._may_go(sequence, view) else Tier.GPU

    def movers(self, decodes: Sequence[GpuSequence], view: NodeView) -> list[GpuSequence]:
        """Choose those whose next token's tier is the host."""
        return [
            s for s in decodes if self._tier(s, s.num_tokens) is Tier.HOST and self._may_go(s, view)
        ]

    def return_at(self, sequence: GpuSequence) -> int | None:
        """Return before the next position whose tier is the device."""
        positions = range(sequence.num_tokens + 1, sequence.request.max_total_tokens)
        return next((p for p in positions if self._tier(sequence, p) is Tier.GPU), None)

    def _may_go(self, sequence: GpuSequence, view: NodeView) -> bool:
        return sequence.host is not None or view.host_has_room(sequence.num_tokens + 1)

    def _tier(self, sequence: GpuSequence, position: int) -> Tier:
        request = sequence.request
        end = sequence.tokens[max(0, request.prompt_tokens - 16) : request.prompt_tokens]
        salt = f"{self._seed}/{request.sampling.seed}/{request.prompt_tokens}/{end}"
        draw = b""
        for back in range(self._LOOK_BACK + 1):
            draw = hashlib.sha256(f"{salt}/{position - back}".encode()).digest()
            if draw[0] < 64:
                break
        return Tier.HOST if draw[1] % 2 else Tier.GPU


class Auto(GpuOnly):
    """Device first, host when the device is short; back when it has room again.

    `headroom` of the device's blocks and a quarter of its rows stay free of residents, so that
    prefills of requests bound for the host always find room. Once `crowd` requests wait, nobody's
    first token is near, and decodes get all but `crowd_headroom`. Residents are moved out below
    `low`, and called back only while more than `headroom` plus `low` would stay free: the gap keeps
    requests from going back and forth.

    While it is not memory that the device is short of, because answers are short, the host is left
    alone: it would slow them down, and the device would not get more done.
    """

    def __init__(
        self,
        *,
        headroom: float = 0.2,
        low: float = 0.1,
        crowd: int = 4,
        crowd_headroom: float = 0.05,
    ) -> None:
        self._headroom = headroom
        self._crowd = crowd
        self._crowd_headroom = crowd_headroom
        self._low = low

    def admit(self, sequence: GpuSequence, view: NodeView) -> Tier | None:
        """Choose the device while it keeps its headroom, then the host, then whatever is left.

        One that was called back is taken though prompts have come meanwhile: it has made no token
        since it left the host, and would wait for as long again there.
        """
        wanted = view.device_blocks_for(sequence.num_tokens + 1)
        if sequence.kv_on_host and self._arrival_fits(wanted, view):
            return Tier.GPU
        headroom = self._headroom if view.num_waiting < self._crowd else self._crowd_headroom
        if self._resident_fits(wanted, headroom, view):
            return Tier.GPU
        if not (view.memory_short or sequence.kv_on_host):
            # A block for each resident to grow into: recomputing a prompt costs more than waiting.
            residents = view.total_device_slots - view.free_device_slots
            return Tier.GPU if wanted + residents <= view.free_device_blocks else None
        if sequence.host is not None or view.host_has_room(sequence.num_tokens + 1):
            return Tier.HOST
        return Tier.GPU if wanted <= view.free_device_blocks else None

    def movers(self, decodes: Sequence[GpuSequence], view: NodeView) -> list[GpuSequence]:
        """Choose the youngest that make up what is missing, those in a hurry last.

        That is room to grow, once fewer than `low` blocks are free: every decode may want a block
        in the same iteration, and a move takes more than one. Moves under way are finished; they
        stop being wished only when twice `low` is free. And it is room for a request that waits.
        """
        if not view.memory_short:
            return []
        low = max(self._low * view.total_device_blocks, 2 * len(decodes))
        under_way = any(s.host is not None for s in decodes)
        missing = view.shortage
        if view.free_device_blocks < (2 * low if under_way else low):
            missing = max(missing, int(2 * low) - view.free_device_blocks)
        missing -= view.leaving_blocks
        if missing <= 0:
            return []
        chosen: list[GpuSequence] = []
        youngest_first = decodes[::-1]
        for sequence in sorted(youngest_first, key=_token_target_s, reverse=True):
            if missing <= 0:
                break
            if sequence.host is not None or view.host_has_room(sequence.num_tokens + 2):
                chosen.append(sequence)
                missing -= view.device_blocks_for(sequence.num_tokens)
        return chosen

    def recall(self, away: Sequence[GpuSequence], view: NodeView) -> GpuSequence | None:
        """Call the oldest back that fits, when nobody waits and few are on their way.

        Those whose tokens are to come soonest go first.
        """
        if view.num_waiting or view.recalls_in_flight >= MAX_RECALLS_IN_FLIGHT:
            return None
        promised = view.recalled_blocks
        for sequence in sorted(away, key=_token_target_s):
            wanted = view.device_blocks_for(sequence.num_tokens + 1) + promised
            if self._resident_fits(wanted, self._headroom + self._low, view):
                return sequence
        return None

    def _arrival_fits(self, wanted: int, view: NodeView) -> bool:
        """Whether one that was called back fits without pushing others out at once."""
        left = view.free_device_blocks - wanted
        return view.free_device_slots > 0 and left >= self._low * view.total_device_blocks

    @staticmethod
    def _resident_fits(wanted: int, headroom: float, view: NodeView) -> bool:
        spare_rows = max(1, view.total_device_slots // 4)
        rows = view.free_device_slots - view.recalls_in_flight > spare_rows
        return rows and view.free_device_blocks - wanted >= headroom * view.total_device_blocks


def _token_target_s(sequence: GpuSequence) -> float:
    """Return the time that may lie between a request's tokens."""
    target_s = sequence.request.token_target_s
    return math.inf if target_s is None else target_s


def placement_from_text(text: str) -> Placement:
    """Build a placement from `auto`, `gpu`, `cpu` or `random:<seed>`.

    Raises SettingsError otherwise.
    """
    simple: dict[str, type[Placement]] = {"auto": Auto, "gpu": GpuOnly, "cpu": CpuOnly}
    if text in simple:
        return simple[text]()
    kind, _, seed = text.partition(":")
    if kind == "random" and seed.isdecimal():
        return RandomMoves(int(seed))
    raise SettingsError(f"placement: {text!r} is not one of auto, gpu, cpu, random:<seed>")
