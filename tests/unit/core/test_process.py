"""Stopping on request, noticing a dead supervisor, and last words."""

import logging
import os
import signal
import threading

import pytest

from dualpace.core.errors import CapacityError
from dualpace.core.process import StopRequest, run_service


def test_a_stop_request_wakes_who_waits_and_keeps_the_first_reason() -> None:
    stop = StopRequest()
    woken = threading.Event()
    stop.on_stop(woken.set)
    assert not stop.requested
    stop.request("first")
    stop.request("second", urgent=True)
    assert woken.is_set()
    assert (stop.requested, stop.reason, stop.urgent) == (True, "first", True)


def test_sigterm_asks_for_a_stop() -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    stop = StopRequest()
    try:
        stop.install_signals()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stop.reason == "SIGTERM"
    assert not stop.urgent


def test_a_closed_lifeline_is_an_urgent_stop() -> None:
    read_fd, write_fd = os.pipe()
    stop = StopRequest()
    stopped = threading.Event()
    stop.on_stop(stopped.set)
    stop.watch_lifeline(read_fd)
    os.write(write_fd, b"x")  # anything written is no reason to stop
    assert not stopped.wait(0.05)
    os.close(write_fd)
    assert stopped.wait(5)
    assert stop.urgent
    os.close(read_fd)


@pytest.mark.parametrize(
    ("error", "status", "last_words"),
    [
        (None, 0, None),
        (CapacityError("no room: make it larger"), 1, "svc stops: no room: make it larger"),
        (ZeroDivisionError("oops"), 1, "svc stops: unexpected ZeroDivisionError: oops"),
    ],
)
def test_the_last_log_line_says_why(
    error: Exception | None,
    status: int,
    last_words: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work() -> None:
        if error is not None:
            raise error

    with caplog.at_level(logging.INFO):
        assert run_service("svc", work) == status
    assert (caplog.messages[-1] if caplog.messages else None) == last_words
