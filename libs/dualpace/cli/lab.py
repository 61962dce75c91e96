"""`dualpace lab`: hands over to the policy lab, a package of its own that may not be installed."""

import importlib.util
import os
import sys
from collections.abc import Sequence

_MODULES = ("dualpace.lab", "numpy", "tqdm")


def lab_command(arguments: Sequence[str]) -> int:
    """Become the lab's process; returns the exit status if it is not installed."""
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        message = f"{', '.join(missing)} is not installed; pip install 'dualpace[lab]'"
        print(f"dualpace lab: {message}", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "dualpace.lab", *arguments]
    return os.execv(command[0], command)  # noqa: S606 - our own interpreter
