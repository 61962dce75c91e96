"""A served node whose threads are pinned: every one of them runs where the plan says."""

import os

import psutil
import pytest

from dualpace.cli.cores import core_plan
from dualpace.cli.settings import ServeSettings
from dualpace.testing.gold import tiny_model
from dualpace.testing.served_node import ServedNode, served_node, wait_for

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one CPU: every plan is the same"
)


def affinities(process: psutil.Process) -> dict[int, tuple[int, ...]]:
    """Allowed CPUs by thread; those that end meanwhile are left out."""
    found = {}
    for thread in process.threads():
        try:
            found[thread.id] = tuple(sorted(os.sched_getaffinity(thread.id)))
        except ProcessLookupError:
            continue
    return found


def strays(node: ServedNode) -> dict[str, dict[int, tuple[int, ...]]]:
    plan = core_plan(ServeSettings(pinning="on"))
    assert plan is not None
    allowed = {
        "gateway": {plan.gateway.cpus},
        "gpu-engine": {plan.gpu_engine.compute_cpus, plan.spare.cpus},
        "cpu-engine": {plan.ranks[0].compute_cpus, plan.spare.cpus},
    }
    services = node.services()
    assert set(services) == set(allowed)
    main = {name: affinities(p)[p.pid] for name, p in services.items()}
    assert main["cpu-engine"] == plan.ranks[0].compute_cpus
    assert main["gpu-engine"] == plan.gpu_engine.compute_cpus
    astray = {
        name: {t: cpus for t, cpus in affinities(p).items() if cpus not in allowed[name]}
        for name, p in services.items()
    }
    return {name: threads for name, threads in astray.items() if threads}


def test_every_thread_of_every_service_is_where_the_plan_says() -> None:
    flags = ("--pinning=on", "--device-kv-mib=1", "--arena-mib=6")
    with served_node(tiny_model("llama3_rope"), *flags) as node:
        wait_for(lambda: ("cpu", "pinned_cpus_asked") in node.gauges(), 20.0, lambda: node.log)
        # Threads that begin later inherit, so it stays true once it is.
        wait_for(lambda: not strays(node), 5.0, lambda: str(strays(node)))
        gauges = node.gauges()
        for engine in ("gpu", "cpu"):
            asked = gauges[engine, "pinned_cpus_asked"]
            assert asked == gauges[engine, "pinned_cpus_got"] >= 1
            assert gauges[engine, "pinned_threads_astray"] == 0
        assert node.log.count("asked and got") == 3
        assert "cores: gateway" in node.log
