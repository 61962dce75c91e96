"""HTTP/1.1 without upgrades, which clients offer and servers may ignore (RFC 9110, section 7.8).

The parser ends a request at its head when it has an Upgrade header, and loses the body: Java's
client offers HTTP/2 so with its first request.
"""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
# Of the same length, so that a body, where line ends within JSON mean nothing, keeps its own.
_IGNORED = b"\r\nx-upgrd"


class NoUpgrades(HttpToolsProtocol):
    """Hides offers from the parser."""

    def data_received(self, data: bytes) -> None:
        """Take what the client sent."""
        super().data_received(_UPGRADE.sub(_IGNORED, data))
