"""Which engine answers for each running request, as far as a gateway was told.

Pure: no IO, no clock.

A request is submitted to a gpu-engine, which answers for it wherever it sends it, until that
process dies or says that it does not. Then the cpu-engine is asked: it may own the request. If it
does not, nobody does, and the request is to be submitted again. After a cpu-engine's death the next
one is asked about what it owned. So a request is submitted again only when both engines have said,
or can only say, that it is not theirs.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from dualpace.core.request import Engine


class Keeper(enum.Enum):
    """Who answers for a request."""

    DEVICE = enum.auto()
    """The gpu-engine that it was submitted to, or the cpu-engine on its behalf."""
    UNKNOWN = enum.auto()
    """The cpu-engine is to be asked."""
    ASKED = enum.auto()
    """The cpu-engine has been asked."""
    HOST = enum.auto()
    """The cpu-engine, and no gpu-engine knows of it."""
    NOBODY = enum.auto()
    """It is to be submitted again."""


@dataclass(slots=True)
class _Entry:
    keeper: Keeper
    device: int
    """Incarnation of the gpu-engine that answered for it last; 0: that one has given it up."""
    serial: int = 0
    """Of the question that waits for its answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask the cpu-engine."""

    request_id: int
    device: int
    serial: int


class Custody:
    """The running requests of one gateway."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keeper(self, request_id: int) -> Keeper:
        """Return who answers for a running request."""
        return self._entries[request_id].keeper

    def settled(self, request_id: int) -> bool:
        """Whether an engine answers for a running request."""
        return self.keeper(request_id) in (Keeper.DEVICE, Keeper.HOST)

    def submitted(self, request_id: int, device: int) -> None:
        """Note a request that was just sent to a gpu-engine, for the first time or again."""
        entry = self._entries.get(request_id)
        assert entry is None or entry.keeper is Keeper.NOBODY
        self._entries[request_id] = _Entry(Keeper.DEVICE, device)

    def ended(self, request_id: int) -> None:
        """Forget a request."""
        self._entries.pop(request_id, None)

    def lost(self, engine: Engine) -> None:
        """Note that an engine's process is gone."""
        at_a_loss = {Engine.GPU: {Keeper.DEVICE}, Engine.CPU: {Keeper.HOST, Keeper.ASKED}}[engine]
        for entry in self._entries.values():
            if entry.keeper in at_a_loss:
                entry.keeper = Keeper.UNKNOWN

    def told(self, engine: Engine, request_id: int, *, owned: bool, serial: int) -> None:
        """Take an engine's word. What does not answer the present question is out of date."""
        entry = self._entries.get(request_id)
        if entry is None:
            return
        if engine is Engine.GPU:
            if entry.keeper is Keeper.DEVICE and not owned:
                entry.keeper, entry.device = Keeper.UNKNOWN, 0
        elif entry.keeper is Keeper.ASKED and serial == entry.serial:
            entry.keeper = Keeper.HOST if owned else Keeper.NOBODY
        elif entry.keeper is Keeper.HOST and not serial and not owned:
            entry.keeper = Keeper.NOBODY

    def questions(self) -> Iterator[Question]:
        """Return what to ask the cpu-engine now; each counts as asked."""
        for request_id, entry in self._entries.items():
            if entry.keeper is Keeper.UNKNOWN:
                self._serial = self._serial % ((1 << 32) - 1) + 1
                entry.keeper, entry.serial = Keeper.ASKED, self._serial
                yield Question(request_id, entry.device, entry.serial)

    def unowned(self) -> list[int]:
        """Return what is to be submitted again."""
        return [k for k, entry in self._entries.items() if entry.keeper is Keeper.NOBODY]
