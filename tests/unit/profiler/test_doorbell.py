"""Empty assist calls between two processes, and how the other one ends."""

import os
import signal
import time

import psutil
import pytest

from dualpace.core.errors import ProfileError
from dualpace.profiler import doorbell
from dualpace.profiler.doorbell import Doorbell


def children() -> set[int]:
    found = psutil.Process().children()
    return {child.pid for child in found if "doorbell" in " ".join(child.cmdline())}


@pytest.mark.parametrize("spin_s", [0.0, 30e-6])
def test_a_call_takes_time_and_nothing_stays(spin_s: float) -> None:
    with Doorbell(host_spin_s=spin_s, device_spin_s=spin_s) as bell:
        assert len(children()) == 1
        samples = [bell.one_way_ms() for _ in range(3)]
    assert all(0.0 < ms < 1000.0 for ms in samples)
    assert not children()


def test_an_answerer_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "_ANSWER_S", 0.5)
    with Doorbell(host_spin_s=0.0, device_spin_s=0.0) as bell:
        os.kill(children().pop(), signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(ProfileError, match="fell silent"):
            bell.one_way_ms()
        assert time.monotonic() - begin < 30.0
    assert not children()
