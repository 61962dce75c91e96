"""How many threads compute, and where, for machines of every kind."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.cpu_engine.cores import plan_threads
from dualpace.pinning import Pins, uniform_topology


@given(
    compute=st.sets(st.integers(0, 63), min_size=1).map(sorted).map(tuple),
    threads=st.integers(0, 16),
)
def test_no_pinned_cpu_computes_twice(compute: tuple[int, ...], threads: int) -> None:
    plan = plan_threads(uniform_topology(cpus=64), Pins(compute, (0,)), threads=threads)
    assert plan.num_threads == (threads or len(compute))
    assert len(set(plan.cpus)) == len(plan.cpus)
    assert set(plan.cpus) <= set(compute)
    assert len(plan.cpus) == (plan.num_threads if plan.num_threads <= len(compute) else 0)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_core_is_left_free_where_there_are_more_than_two(cores: int, threads: int) -> None:
    topology = uniform_topology(cpus=2 * cores, threads_per_core=2)
    plan = plan_threads(topology, None, threads=0)
    assert (plan.num_threads, plan.cpus) == (threads, ())
    assert plan_threads(topology, None, threads=7).num_threads == 7


def test_a_quota_counts_like_fewer_cores() -> None:
    topology = dataclasses.replace(uniform_topology(cpus=64), quota_cpus=4.5)
    assert plan_threads(topology, None, threads=0).num_threads == 3
