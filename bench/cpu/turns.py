"""Has engines time cells in turn, and keeps what they say. Knows nothing of their kinds."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from time import sleep

from cpu.cells import Cell
from cpu.limits import Limits
from cpu.session import Session, SessionError
from cpu.store import Store

SPIN_S = 0.3
"""Threads of some runtimes go on spinning for 0.2 s after their work, at the next one's cost."""

Pair = tuple[str, str]
"""An engine's name, and a format."""
Opener = Callable[[], Session]


def take_turns(
    store: Store,
    openers: Mapping[Pair, Opener],
    cells: list[Cell],
    *,
    rounds: int,
    measure_limits: Callable[[], Limits],
) -> set[Pair]:
    """Start every engine in its format, then time each cell with all in turn, round by round.

    The machine's limits are measured before each cell that several share, and at the end. Returns
    those that timed something. Why others did not, or not all, is printed and kept.
    """
    timed: set[Pair] = set()
    with ExitStack() as stack:
        opened = dict(_open(store, stack, openers))
        store.add_limits(measure_limits())
        for cell in cells * rounds:
            for pair in list(opened):
                if _time(store, pair, opened, cell):
                    timed.add(pair)
            if len(openers) > 1:
                store.add_limits(measure_limits())
    if len(openers) == 1:
        store.add_limits(measure_limits())
    return timed


def _open(
    store: Store, stack: ExitStack, openers: Mapping[Pair, Opener]
) -> Iterator[tuple[Pair, Session]]:
    for pair, opener in openers.items():
        try:
            session = stack.enter_context(opener())
            session.wait_ready()
        except SessionError as error:
            _miss(store, pair, str(error))
        else:
            yield pair, session


def _time(store: Store, pair: Pair, opened: dict[Pair, Session], cell: Cell) -> bool:
    """Time one cell with one engine, which is struck off `opened` if its process has ended."""
    sleep(SPIN_S)
    try:
        timing = opened[pair].measure(cell)
    except SessionError as error:
        opened.pop(pair).close()
        _miss(store, pair, f"{cell}: {error}")
        return False
    if timing is None:
        _miss(store, pair, opened[pair].last_error())
        return False
    store.add(timing)
    return True


def _miss(store: Store, pair: Pair, reason: str) -> None:
    print(f"  {' '.join(pair)}: {reason}", flush=True)
    store.add_missing(*pair, reason)
