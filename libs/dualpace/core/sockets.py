"""Limits of sockets, and taking a TCP port with words a person can use when it cannot be had."""

import socket

from dualpace.core.errors import SettingsError

MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket's path, less its final null (unix(7))."""


def listen_tcp(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise SettingsError(f"cannot listen on {host} port {port}: {reason}") from error
    return listener
