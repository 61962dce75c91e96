"""Sessions between processes that may die: what is under way stays there until it is delivered.

What a process has not sent when it dies is lost, and so is what has not reached it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualpace.core.messages import EngineEvent, GatewayWord
from dualpace.core.request import Engine


class Wire:
    """One direction of a session. It ends with the process at either end."""

    def __init__(self) -> None:
        self.items: deque[object] = deque()
        self.closed = False
        """Nothing more is put in."""
        self.ended = False
        """Its writer is dead: its reader is to learn of that."""

    def put(self, items: Sequence[object]) -> None:
        """Send; in vain if the other end is gone."""
        if not self.closed:
            self.items.extend(items)

    def end(self, keep: int) -> None:
        """Its writer died: all but the first `keep` items are lost."""
        self.closed = self.ended = True
        while len(self.items) > keep:
            self.items.pop()

    def drop(self) -> None:
        """Its reader died."""
        self.closed = True
        self.items.clear()


@dataclass
class Session:
    """Two wires; the side that outlives the other notices once the wire to it is drained."""

    to_server: Wire
    to_client: Wire


class GatewaysPort:
    """The gateway's way to an engine."""

    def __init__(self, sessions: Mapping[Engine, Session], engine: Engine) -> None:
        self._sessions = sessions
        self._engine = engine

    @property
    def connected(self) -> bool:
        """Whether a session is open."""
        return self._engine in self._sessions

    def send(self, message: GatewayWord) -> None:
        """Put a message on its wire; lost where there is no session."""
        session = self._sessions.get(self._engine)
        if session is not None:
            session.to_server.put([message])


class EnginesPort:
    """An engine's way to the gateway."""

    def __init__(self, sessions: Mapping[Engine, Session], engine: Engine) -> None:
        self._sessions = sessions
        self._engine = engine

    def post(self, events: Sequence[EngineEvent]) -> None:
        """Put events on their wire; lost where there is no session."""
        session = self._sessions.get(self._engine)
        if session is not None:
            session.to_client.put(list(events))

    def post_status(self, gauges: Mapping[str, float]) -> None:
        """Tell nobody."""
        del gauges
