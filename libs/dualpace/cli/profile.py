"""`dualpace profile`: becomes the profiler's process."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

MODULE = "dualpace.profiler"


def profile_command(argv: Sequence[str]) -> NoReturn:
    """Run the profiler with these flags; it has its own settings, signals and exit status."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", MODULE, *argv])  # noqa: S606 - no shell meant
