"""What an engine needs of its surroundings, as Protocols.

One implementation speaks gRPC, one is in-process.

Everything that arrives is put in the engine's inbox, whose single reader is the engine's thread.
Everything that leaves is posted and never waits: an engine's clock does not depend on its peers.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dualpace.core.messages import (
    EngineEvent,
    GatewayWord,
    HandoffCommand,
    HandoffEvent,
)
from dualpace.ipc.bell import Bell, LocalBell

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayLeft:
    """A gateway's session ended; nobody waits for its requests any more."""

    gateway_id: int


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """A submitted request's grammar has been compiled, well or not."""

    request_id: int


@dataclass(frozen=True, slots=True)
class HostJoined:
    """The cpu-engine can be talked to, in this session."""

    session: int


@dataclass(frozen=True, slots=True)
class HostLeft:
    """The cpu-engine went away."""


@dataclass(frozen=True, slots=True)
class DeviceJoined:
    """The gpu-engine opened a handoff session."""

    session: int
    device: int = 0
    """The gpu-engine's incarnation."""


@dataclass(frozen=True, slots=True)
class DeviceLeft:
    """The gpu-engine's handoff session ended."""


GatewayInput = GatewayWord | GatewayLeft
GpuInput = GatewayInput | GrammarReady | HandoffEvent | HostJoined | HostLeft
CpuInput = GatewayInput | HandoffCommand | DeviceJoined | DeviceLeft


class Inbox(Generic[T]):
    """An ordered, unbounded, thread-safe queue with one reader, who hears `bell`."""

    def __init__(self, bell: Bell | None = None) -> None:
        self._items: deque[T] = deque()
        self._bell = LocalBell() if bell is None else bell
        self.flag: npt.NDArray[np.int32] = np.zeros(1, np.int32)
        """[1]: not zero while something has arrived; for readers that cannot call `drain` now."""

    def put(self, item: T) -> None:
        """Add an item; from any thread."""
        self._items.append(item)
        self.flag[0] = 1
        self._bell.ring()

    def wake(self) -> None:
        """End a wait without an item."""
        self._bell.ring()

    def wait(self, timeout_s: float) -> None:
        """Block until the bell rings, or the time is up."""
        self._bell.wait(timeout_s)

    def drain(self) -> list[T]:
        """Return everything that has arrived, oldest first."""
        self._bell.listen()
        self.flag[0] = 0
        items: list[T] = []
        while self._items:
            items.append(self._items.popleft())
        return items


class GatewayPort(Protocol):
    """The way to the gateways."""

    def post(self, events: Sequence[EngineEvent]) -> None:
        """Send each event to its gateway; those of gateways that left are dropped."""
        ...

    def post_status(self, gauges: Mapping[str, float]) -> None:
        """Send the engine's numbers to every gateway."""
        ...


class GrammarCompiler(Protocol):
    """Compiles grammars outside the engine's thread."""

    def prepare(self, grammar: str, done: Callable[[], None]) -> None:
        """Compile, then call `done` in whatever thread."""
        ...

    def ready(self, grammar: str) -> bool:
        """Whether a sampler would not have to wait for it."""
        ...


class HandoffCommandPort(Protocol):
    """The gpu-engine's way to the cpu-engine."""

    def post(self, session: int, commands: Sequence[HandoffCommand]) -> None:
        """Send commands in order; dropped unless this session is still the open one.

        What was decided under one session means nothing to the next, which may be with another
        process.
        """
        ...


class HandoffEventPort(Protocol):
    """The cpu-engine's way to the gpu-engine."""

    def post(self, session: int, events: Sequence[HandoffEvent]) -> None:
        """Send events in order; dropped unless this session is still the open one."""
        ...
