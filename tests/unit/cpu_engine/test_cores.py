"""Which processors compute, for machines of every kind."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.errors import SettingsError
from dualpace.cpu_engine.cores import Machine, parse_cpu_list, plan_cores, read_machine


def machine(cores: list[list[int]], quota: float | None = None) -> Machine:
    groups = tuple(frozenset(core) for core in cores)
    return Machine(allowed=frozenset().union(*groups), cores=groups, quota=quota)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Cores of one to four processors, in any order of numbers."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    numbers = iter(draw(st.permutations(range(sum(sizes)))))
    quota = draw(st.none() | st.floats(0.1, 20))
    return machine([[next(numbers) for _ in range(size)] for size in sizes], quota)


@given(machine=machines(), threads=st.integers(0, 16), pin=st.sampled_from(["auto", "on", "off"]))
def test_no_core_computes_twice(machine: Machine, threads: int, pin: str) -> None:
    try:
        plan = plan_cores(machine, threads=threads, pin=pin)
    except SettingsError:
        assert pin == "on"
        assert threads > len(machine.cores)
        return
    assert plan.num_threads >= 1
    assert plan.num_threads == threads or threads == 0
    assert len(plan.cpus) in {0, plan.num_threads}
    assert set(plan.cpus) <= machine.allowed
    taken = [core for core in machine.cores if core & set(plan.cpus)]
    assert len(taken) == len(plan.cpus)
    if plan.cpus and pin == "auto":
        assert len(taken) < len(machine.cores)
    if threads == 0 and machine.quota is not None:
        assert plan.num_threads <= max(1, machine.quota)


@pytest.mark.parametrize(
    ("num_cores", "threads", "cpus"), [(1, 1, ()), (2, 2, ()), (3, 2, (2, 4)), (4, 3, (2, 4, 6))]
)
def test_a_core_is_left_free_where_there_are_more_than_two(
    num_cores: int, threads: int, cpus: tuple[int, ...]
) -> None:
    plan = plan_cores(
        machine([[2 * n, 2 * n + 1] for n in range(num_cores)]), threads=0, pin="auto"
    )
    assert (plan.num_threads, plan.cpus) == (threads, cpus)


def test_a_quota_counts_like_fewer_cores() -> None:
    plan = plan_cores(machine([[n] for n in range(64)], quota=4.5), threads=0, pin="auto")
    assert plan.num_threads == 3
    assert len(plan.cpus) == 3


def test_too_few_cores_for_pinning_stop_the_start() -> None:
    with pytest.raises(SettingsError, match=r"pin=on: 3 threads need .* may use 2"):
        plan_cores(machine([[0, 1], [2, 3]]), threads=3, pin="on")


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0,64", {0, 64})]
)
def test_lists_of_processors(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(siblings, encoding="ascii")
    quota = tmp_path / "cpu.max"
    quota.write_text("150000 100000\n", encoding="ascii")
    read = read_machine(tmp_path, quota, allowed={0, 1, 2})
    assert read.cores == (frozenset({0, 2}), frozenset({1}))
    assert read.quota == 1.5
    quota.write_text("max 100000\n", encoding="ascii")
    assert read_machine(tmp_path, quota, allowed={0}).quota is None
    assert read_machine(tmp_path / "none", tmp_path / "none", allowed={7}).cores == (
        frozenset({7}),
    )
