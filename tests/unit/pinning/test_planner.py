"""The core plan over synthetic machines: what always holds, and what it is worth."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.pinning import (
    CoreSet,
    NodePlan,
    NodeRequest,
    Topology,
    own_cores,
    pins_from_text,
    pins_text,
    plan_node,
    uniform_topology,
)
from tests.unit.pinning.machines import Machine, machines

requests = st.builds(
    NodeRequest,
    ranks=st.integers(1, 4),
    gateway_cores=st.integers(0, 2),
    gpu_engine_cores=st.integers(0, 4),
    spare_cores=st.integers(0, 2),
)


def services(plan: NodePlan, request: NodeRequest) -> list[tuple[CoreSet, int]]:
    return [
        (plan.gateway, request.gateway_cores),
        (plan.gpu_engine, request.gpu_engine_cores),
        (plan.spare, request.spare_cores),
    ]


def wanted(request: NodeRequest) -> int:
    return request.gateway_cores + request.gpu_engine_cores + request.spare_cores


def feasible(topology: Topology, request: NodeRequest, size: int) -> bool:
    """Whether ranks of this size fit into nodes beside the services: by trying every placement."""
    free = [sum(c.node == node for c in topology.cores) for node in topology.nodes]
    for choice in itertools.combinations_with_replacement(range(len(free)), request.ranks):
        if all(free[node] >= size * choice.count(node) for node in set(choice)):
            return len(topology.cores) - size * request.ranks >= wanted(request)
    return False


@given(machines(), requests)
@settings(max_examples=300, deadline=None)
def test_what_always_holds(machine: Machine, request: NodeRequest) -> None:
    topology = machine.topology()
    plan = plan_node(topology, request)
    sets = [*(s for s, _ in services(plan, request)), *plan.ranks, plan.unused]
    used = [core for cores in sets for core in cores.cores]
    assert set(used) == set(topology.cores)  # whole cores, none forgotten, none invented
    assert all(bool(s.cores) == (count > 0) for s, count in services(plan, request))
    assert len(plan.ranks) == request.ranks and all(rank.cores for rank in plan.ranks)
    assert len({len(rank.cores) for rank in plan.ranks}) == 1
    assert all(len({core.node for core in rank.cores}) == 1 for rank in plan.ranks)
    assert plan == plan_node(topology, request)
    if len(used) != len(set(used)):
        assert any("share" in warning for warning in plan.warnings)


@given(machines(), requests)
@settings(max_examples=300, deadline=None)
def test_where_cores_suffice_everybody_gets_what_was_asked_and_ranks_the_most(
    machine: Machine, request: NodeRequest
) -> None:
    topology = machine.topology()
    plan = plan_node(topology, request)
    if not feasible(topology, request, 1):
        assert any("share" in w or "too few" in w or "no core" in w for w in plan.warnings)
        return
    sets = [*(s for s, _ in services(plan, request)), *plan.ranks, plan.unused]
    used = [core for cores in sets for core in cores.cores]
    assert len(used) == len(set(used))
    assert [len(s.cores) for s, _ in services(plan, request)] == [
        count for _, count in services(plan, request)
    ]
    size = len(plan.ranks[0].cores)
    assert feasible(topology, request, size) and not feasible(topology, request, size + 1)


@given(machines())
@settings(deadline=None)
def test_a_plan_survives_the_way_through_settings(machine: Machine) -> None:
    topology = machine.topology()
    plan = plan_node(topology, NodeRequest())
    pins = pins_from_text(pins_text(topology, plan.ranks[0], plan.spare), topology)
    assert pins is not None
    assert (pins.compute, pins.helpers) == (plan.ranks[0].compute_cpus, plan.spare.cpus)
    cores = [next(c for c in topology.cores if cpu in c.cpus) for cpu in pins.compute]
    assert len(set(cores)) == len(cores)  # no two compute threads on one core


@pytest.mark.parametrize("device_node", [0, 1])
def test_the_gpu_engine_is_near_its_gpu_where_that_costs_the_rank_nothing(
    device_node: int,
) -> None:
    machine = Machine(nodes=2, cores_per_node=8, threads=2, device_node=device_node)
    machine.allowed = set(machine.all_cpus)
    plan = plan_node(machine.topology(), NodeRequest(gpu_engine_cores=2))
    assert {core.node for core in plan.gpu_engine.cores} == {device_node}
    assert {core.node for core in plan.ranks[0].cores} == {1 - device_node}
    assert len(plan.ranks[0].cores) == 8
    assert any("are not used" in warning for warning in plan.warnings)


def test_ranks_spread_over_nodes() -> None:
    machine = Machine(nodes=2, cores_per_node=8, threads=1)
    machine.allowed = set(machine.all_cpus)
    plan = plan_node(machine.topology(), NodeRequest(ranks=2))
    # Three service cores and two equal ranks: one node gives none of its cores away.
    assert [str(rank) for rank in plan.ranks] == ["2-7", "10-15"]
    assert (str(plan.gateway), str(plan.gpu_engine), str(plan.spare)) == ("1", "0", "8")


def test_two_cores_serve_by_sharing() -> None:
    plan = plan_node(uniform_topology(cpus=2), NodeRequest())
    assert str(plan) == "gateway 0; gpu-engine 0; ranks 1; spare 0"
    assert plan.warnings == ("too few cores: gateway, gpu-engine, spare share one",)


def test_what_others_may_use_is_said() -> None:
    machine = Machine(nodes=1, cores_per_node=4, threads=2, allowed={0, 1, 2, 3, 4})
    topology = machine.topology()
    assert "siblings of CPUs 1-3" in plan_node(topology, NodeRequest()).warnings[0]
    throttled = Topology(cores=topology.cores, threads_per_core=2, quota_cpus=2.5)
    assert any(
        "quota grants the time of 2.5" in w for w in plan_node(throttled, NodeRequest()).warnings
    )


@given(st.integers(1, 64), st.sampled_from([1, 2]), st.integers(1, 4))
def test_a_container_of_its_own_keeps_one_core_free_of_compute(
    cpus: int, threads: int, nodes: int
) -> None:
    topology = uniform_topology(cpus=cpus, threads_per_core=threads, numa_nodes=nodes)
    assert topology.cpus == tuple(range(cpus))
    pins = own_cores(topology)
    if len(topology.cores) > 1:
        assert not set(pins.compute) & set(pins.helpers)
    assert len({c.node for c in topology.cores if set(c.cpus) & set(pins.compute)}) == 1
