"""Bells wake who waits, in this process and in others, and no ring is ever lost."""

import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dualpace.ipc.bell import Bell, LocalBell, SharedBell


def shared_bell() -> SharedBell:
    return SharedBell(np.zeros(1, np.int32))


@pytest.fixture(params=[LocalBell, shared_bell])
def bell(request: pytest.FixtureRequest) -> Bell:
    made: Bell = request.param()
    return made


def test_a_ring_ends_a_wait_and_none_lets_it_time_out(bell: Bell) -> None:
    bell.listen()
    started = time.monotonic()
    bell.wait(0.05)
    assert time.monotonic() - started >= 0.045
    threading.Timer(0.02, bell.ring).start()
    started = time.monotonic()
    bell.wait(10.0)
    assert time.monotonic() - started < 5.0


def test_a_ring_between_listening_and_waiting_is_heard(bell: Bell) -> None:
    bell.listen()
    bell.ring()
    started = time.monotonic()
    bell.wait(10.0)
    assert time.monotonic() - started < 5.0


def test_no_ring_is_lost_however_many_ring_at_once(bell: Bell) -> None:
    """As an inbox does: publish, then ring; listen, then look."""
    published = [0] * 4
    seen = 0

    def publisher(index: int) -> None:
        for _ in range(500):
            published[index] += 1
            bell.ring()

    threads = [threading.Thread(target=publisher, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while seen < 2000:
        assert time.monotonic() < deadline
        bell.listen()
        seen = sum(published)
        if seen < 2000:
            started = time.monotonic()
            bell.wait(5.0)
            assert time.monotonic() - started < 4.0, "a ring was lost"
    for thread in threads:
        thread.join()


def test_two_processes_answer_each_other(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(bytes(4096))
    code = (
        "import mmap, os, sys, numpy as np\n"
        "from dualpace.kernels import load, publish, wait_changed\n"
        "memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)\n"
        "words = np.frombuffer(memory, np.int32)\n"
        "seen = 0\n"
        "while seen < 1000:\n"
        "    seen = wait_changed(words, 0, seen, spin_ns=0, timeout_ns=10**10)\n"
        "    publish(words, 16, seen)\n"
    )
    fd = os.open(path, os.O_RDWR)
    words = np.frombuffer(mmap.mmap(fd, 4096), np.int32)
    os.close(fd)
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        from dualpace.kernels import publish, wait_changed  # noqa: PLC0415

        for number in range(1, 1001):
            publish(words, 0, number)
            answer = wait_changed(words, 16, number - 1, spin_ns=0, timeout_ns=20 * 10**9)
            assert answer == number
        assert process.wait(10) == 0


def test_words_of_another_kind_are_refused() -> None:
    from dualpace.kernels import ring  # noqa: PLC0415

    with pytest.raises(ValueError, match="int32"):
        ring(np.zeros(4, np.float32), 0)
    with pytest.raises(ValueError, match="index"):
        ring(np.zeros(4, np.int32), 4)
