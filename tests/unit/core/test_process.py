"""Stopping on request, noticing a dead supervisor, and last words."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dualpace.core.errors import CapacityError, SettingsError, StoppedError
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


def test_who_asks_late_to_be_woken_is_woken_at_once() -> None:
    stop = StopRequest()
    stop.request("early")
    woken: list[str] = []
    stop.on_stop(lambda: woken.append(stop.reason))
    assert woken == ["early"]


def test_signals_ask_for_a_stop_at_any_moment_without_locking_up() -> None:
    """The main thread may hold the very lock that waking it needs, as a signal arrives."""
    code = (
        "import os, sys, time\n"
        "from dualpace.core.process import StopRequest\n"
        "from dualpace.ipc.channel import Inbox\n"
        "stop, inbox = StopRequest(), Inbox()\n"
        "stop.install_signals()\n"
        "stop.on_stop(inbox.wake)\n"
        "print('up', flush=True)\n"
        "end = time.monotonic() + 1.5\n"
        "while time.monotonic() < end:\n"
        "    inbox.drain(); inbox.wake()\n"
        "print(stop.reason, stop.urgent, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        deadline = time.monotonic() + 20
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0002)
        assert process.stdout.read() == "SIGTERM False\n"


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
        (StoppedError("stopped while starting: SIGTERM"), 0, "svc stopped while starting: SIGTERM"),
        (SettingsError("no such thing"), 2, "svc stops: no such thing"),
        (CapacityError("no room: make it larger"), 1, "svc stops: no room: make it larger"),
        (ZeroDivisionError("oops"), 1, "svc stops: unexpected ZeroDivisionError: oops"),
    ],
)
def test_the_last_log_line_says_why(
    error: Exception | None,
    status: int,
    last_words: str | None,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def work() -> None:
        if error is not None:
            raise error

    termination_log = tmp_path / "reason"
    with caplog.at_level(logging.INFO):
        assert run_service("svc", work, str(termination_log)) == status
    assert (caplog.messages[-1] if caplog.messages else None) == last_words
    assert termination_log.exists() == (status != 0)
    if status:
        assert last_words == "svc stops: " + termination_log.read_text().strip()
