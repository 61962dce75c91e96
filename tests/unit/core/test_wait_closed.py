"""The hook that lets engines outlive their gateway."""

import socket
import threading
import time

from dualpace.core.wait_closed import wait_closed


def test_it_waits_for_the_port_to_close_and_no_longer() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    assert not wait_closed("127.0.0.1", port, 0.3)
    threading.Timer(0.3, listener.close).start()
    began = time.monotonic()
    assert wait_closed("127.0.0.1", port, 30.0)
    assert 0.2 < time.monotonic() - began < 10.0
    assert wait_closed("127.0.0.1", port, 30.0)
