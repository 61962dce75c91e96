"""Pinning a real process, and what is said where it does not take."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from dualpace.core.errors import SettingsError
from dualpace.pinning import Core, Topology, pins_from_text, read_topology, uniform_topology


def run(script: str) -> dict[str, object]:
    """Run a script in a process of its own and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result | {"log": done.stderr}


PROLOGUE = """
    import json, logging, os, threading
    logging.basicConfig(level=logging.INFO)
    from dualpace.pinning import pin_process, pinning_gauges, read_topology, Core, Topology
    stop = threading.Event()
    helper = threading.Thread(target=stop.wait, daemon=True)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two CPUs are needed to tell")
def test_every_thread_runs_where_the_plan_says() -> None:
    result = run(
        PROLOGUE
        + """
    pinning = pin_process("1/0")
    helper.start()
    import torch
    torch.set_num_threads(2)
    torch.ones(512, 512) @ torch.ones(512, 512)  # starts compute threads
    pinning.settle()
    affinity = lambda t: sorted(os.sched_getaffinity(t))
    others = {t: affinity(int(t)) for t in os.listdir("/proc/self/task")}
    del others[str(helper.native_id)]
    print(json.dumps({
        "main": affinity(0), "helper": affinity(helper.native_id), "others": list(others.values()),
        "gauges": pinning_gauges(), "allowed": read_topology(affinity=range(2)).cpus,
    }))
    """
    )
    cpus = sorted(os.sched_getaffinity(0))
    assert result["main"] == [cpus[1]]
    assert result["helper"] == [cpus[0]]
    assert all(other == [cpus[1]] for other in result["others"])  # type: ignore[attr-defined]
    assert result["gauges"] == {
        "pinned_cpus_asked": 1.0,
        "pinned_cpus_got": 1.0,
        "pinned_threads_astray": 0.0,
    }
    assert "asked and got" in str(result["log"])


def test_a_refusal_is_a_warning_and_the_process_goes_on() -> None:
    """CPUs that do not exist stand for a cpuset that shrank after the plan was made."""
    result = run(
        PROLOGUE
        + """
    before = sorted(os.sched_getaffinity(0))
    far = Topology(cores=(Core(cpus=(1000,), node=0, cache=1000),), threads_per_core=1)
    pin_process("0", far).settle()
    gauges = pinning_gauges()
    print(json.dumps({"kept": before == sorted(os.sched_getaffinity(0)), "gauges": gauges}))
    """
    )
    assert result["kept"] is True
    assert result["gauges"]["pinned_threads_astray"] >= 1  # type: ignore[index]
    assert "CPUs 1000 were refused" in str(result["log"])


def test_without_pins_nothing_is_touched() -> None:
    result = run(
        PROLOGUE
        + """
    before = sorted(os.sched_getaffinity(0))
    pin_process("off").settle()
    gauges = pinning_gauges()
    print(json.dumps({"kept": before == sorted(os.sched_getaffinity(0)), "gauges": gauges}))
    """
    )
    assert result["kept"] is True
    assert set(result["gauges"].values()) == {0.0}  # type: ignore[attr-defined]
    assert "not pinned" in str(result["log"])


def test_this_machine_reads() -> None:
    topology = read_topology()
    assert set(topology.cpus) == os.sched_getaffinity(0)


def test_positions_count_among_the_allowed_cpus() -> None:
    cores = tuple(Core(cpus=(cpu,), node=0, cache=0) for cpu in (4, 7, 9))
    topology = Topology(cores=cores, threads_per_core=1)
    pins = pins_from_text("1-2/0", topology)
    assert pins is not None and (pins.compute, pins.helpers) == ((7, 9), (4,))
    alone = pins_from_text("0", topology)
    assert alone is not None and alone.compute == alone.helpers == (4,)


@pytest.mark.parametrize("text", ["", "x", "5", "0-1/", "0/9", "/0", "on", "1-0"])
def test_a_wrong_setting_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^cores: "):
        pins_from_text(text, uniform_topology(cpus=4))
