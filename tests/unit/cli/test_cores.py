"""Which cores `dualpace serve` gives to whom."""

import os

import pytest

from dualpace.cli.cores import core_plan, service_cores
from dualpace.cli.settings import ServeSettings
from dualpace.pinning import uniform_topology

SERVER = uniform_topology(cpus=32, threads_per_core=2, numa_nodes=2)


@pytest.mark.parametrize(
    ("pinning", "device", "pinned"),
    [
        ("auto", "cuda", True),
        ("auto", "cpu", False),
        ("on", "cpu", True),
        ("off", "cuda:1", False),
    ],
)
def test_who_is_pinned(pinning: str, device: str, pinned: bool) -> None:
    settings = ServeSettings(pinning=pinning, device=device)
    assert (core_plan(settings, SERVER) is not None) is pinned
    services = ("gpu-engine", "cpu-engine", "gateway")
    assert all(bool(service_cores(s, settings, SERVER)) is pinned for s in services)


def test_each_service_hears_its_part_of_one_plan() -> None:
    settings = ServeSettings(device="cuda")
    assert service_cores("gpu-engine", settings, SERVER) == {"cores": "0/4-5", "threads": 1}
    assert service_cores("gateway", settings, SERVER) == {"cores": "2-3"}
    assert service_cores("cpu-engine", settings, SERVER) == {
        "cores": "16,18,20,22,24,26,28,30/4-5",
        "threads": 8,
    }


def test_a_cpu_in_the_role_of_the_device_computes_as_well() -> None:
    settings = ServeSettings(device="cpu", pinning="on")
    found = [service_cores(s, settings, SERVER) for s in ("gpu-engine", "cpu-engine")]
    assert [f["threads"] for f in found] == [7, 7]


def test_this_machine_can_be_planned() -> None:
    cores = service_cores("cpu-engine", ServeSettings(pinning="on"))
    assert 1 <= int(str(cores["threads"])) <= len(os.sched_getaffinity(0))
