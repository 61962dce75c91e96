"""Keeps the garbage collector from going through what a process keeps for its whole life.

A vocabulary alone is a hundred thousand objects, which a full collection would look at again and
again while streams wait.
"""

import gc

_YOUNG_OBJECTS = 10_000
"""Made, less freed, between collections of the youngest; requests leave few cycles behind."""


def settle_garbage_collector() -> None:
    """Leave alone what is there now. Call once, in a process that serves, when all is loaded."""
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *older)
