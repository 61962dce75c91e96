"""Engines' processes are asked for cells in turn; one that fails, ends or hangs stops no other."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest
from cpu.cells import Cell
from cpu.limits import Limits
from cpu.run import pairs_of
from cpu.session import Session, SessionError
from cpu.store import Store
from cpu.turns import take_turns

BENCH = Path(__file__).parents[3] / "bench"
ENGINE = """
import os, sys, time
from cpu.cells import peer_arguments, report
arguments = peer_arguments(("float32",))
if arguments.model == "never loads":
    sys.exit("no such model")
def measure(cell):
    print("a line that says nothing")
    if cell.batch == 2:
        raise ValueError("two are too many")
    if cell.batch == 3:
        os._exit(1)
    if cell.batch == 4:
        time.sleep(60)
    return [float(cell.batch), cell.context / 2], {"head": 1.0}
report(arguments.model, arguments, measure)
"""


def start(name: str, limit_s: float = 20.0) -> Session:
    """Start the engine above."""
    command = [sys.executable, "-c", ENGINE, "--model", name, "--format", "float32"]
    command += ["--cells", "1:128"]
    return Session(command, dict(os.environ) | {"PYTHONPATH": str(BENCH)}, limit_s)


def test_a_session_times_each_cell_that_it_is_asked_for() -> None:
    with start("one") as session:
        session.wait_ready()
        for cell in (Cell(1, 128), Cell(8, 1024), Cell(1, 128)):
            timing = session.measure(cell)
            assert timing is not None
            assert (timing.engine, timing.batch, timing.context) == ("one", *vars(cell).values())
            assert timing.tokens_per_s == (cell.batch, cell.context / 2)


def test_a_cell_that_fails_leaves_the_session_alive() -> None:
    with start("one") as session:
        session.wait_ready()
        assert session.measure(Cell(2, 128)) is None
        assert session.last_error().endswith("two are too many")
        assert session.measure(Cell(1, 128)) is not None


def test_a_process_that_ends_says_what_it_said_last() -> None:
    with start("never loads") as session, pytest.raises(SessionError, match="no such model"):
        session.wait_ready()


def test_a_process_that_does_not_answer_is_given_up() -> None:
    with start("one", limit_s=2.0) as session:
        session.wait_ready()
        with pytest.raises(SessionError, match="did not answer within 2 s"):
            session.measure(Cell(4, 128))


def test_engines_take_turns_cell_by_cell_and_the_machine_is_measured_between() -> None:
    order: list[str] = []
    measured = iter(range(1, 100))

    def limits() -> Limits:
        return Limits(next(measured), 1.0, None, None)

    class Listing(Store):
        def add(self, timing):  # type: ignore[no-untyped-def]
            order.append(f"{timing.engine} {timing.batch}")
            super().add(timing)

    store = Listing(None)
    names = ("one", "two", "never loads")
    timed = take_turns(
        store,
        {(name, "float32"): partial(start, name) for name in names},
        [Cell(1, 128), Cell(2, 128), Cell(5, 128)],
        rounds=2,
        measure_limits=limits,
    )
    assert timed == {("one", "float32"), ("two", "float32")}
    assert order == ["one 1", "two 1", "one 5", "two 5"] * 2
    assert store.missing == {
        ("one", "float32"): "Cell(batch=2, context=128): two are too many",
        ("two", "float32"): "Cell(batch=2, context=128): two are too many",
        ("never loads", "float32"): "no such model",
    }
    around = store.limits_around("two", "float32", Cell(5, 128))
    assert [one.read_gb_per_s for one in around] == [4, 7]


def test_an_engine_that_ends_is_asked_no_more() -> None:
    store = Store(None)
    timed = take_turns(
        store,
        {("one", "float32"): partial(start, "one")},
        [Cell(1, 128), Cell(3, 128), Cell(1, 128)],
        rounds=1,
        measure_limits=lambda: Limits(1.0, 1.0, None, None),
    )
    assert timed == {("one", "float32")}
    assert len(store.timings["one", "float32", Cell(1, 128)]) == 1
    assert len(store.limits) == 2


def test_engines_come_in_every_format_or_in_the_one_they_name() -> None:
    assert pairs_of(["one", "two/int8"], ["float32", "int8"]) == [
        ("one", "float32"),
        ("one", "int8"),
        ("two", "int8"),
    ]
