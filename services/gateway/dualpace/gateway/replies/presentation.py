"""How an answer looks, whole or streamed; what runs behind it is not known here."""

from collections.abc import Sequence
from typing import Any, Protocol

from dualpace.gateway.choices import Choice, Delta
from dualpace.gateway.errors import ApiError
from dualpace.gateway.replies.common import ReplyOptions


class Presentation(Protocol):
    """The looks of one answer; it knows the choices that it shows."""

    @property
    def options(self) -> ReplyOptions:
        """What the client wants to see of it."""
        ...

    def whole(self, shown: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        """Return the answer in one object. `shown`: everything that became visible, by choice."""
        ...

    def added(self, choice: Choice, delta: Delta | None) -> bytes | None:
        """Return the server-sent events that one event of a choice's generation makes, if any."""
        ...

    def ended(self) -> bytes:
        """Return the server-sent events that end a stream whose choices have all ended."""
        ...

    def late_error(self, error: ApiError) -> bytes:
        """Return the last server-sent event of a stream that fails after its start."""
        ...

    def in_own_words(self, error: ApiError) -> ApiError:
        """Return an error whose field has the name that the client knows."""
        ...
