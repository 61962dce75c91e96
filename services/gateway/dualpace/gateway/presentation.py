"""How an answer looks, whole or streamed; what runs behind it is not known here."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.errors import ApiError
from dualpace.gateway.replies.common import ReplyOptions

Events = AsyncGenerator[tuple[Choice, Delta | None], None]
"""A choice and what became visible of it, after each event of its generation."""


class Presentation(Protocol):
    """The looks of one answer; it knows the choices that it shows."""

    @property
    def options(self) -> ReplyOptions:
        """What the client wants to see of it."""
        ...

    def whole(self, shown: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """Return the answer in one object. `shown`: everything that became visible, by choice."""
        ...

    def frames(self, events: Events) -> AsyncGenerator[bytes, None]:
        """Yield the answer as server-sent events; closes `events`, whatever happens."""
        ...

    def late_error(self, error: ApiError) -> bytes:
        """Return the last server-sent event of a stream that fails after its start."""
        ...
