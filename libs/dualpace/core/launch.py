"""Run a service as a container's first process: `python -m dualpace.core.launch MODULE [FLAG ...]`.

The kernel drops SIGTERM for a first process that has no handler for it, and a service installs one
only after its imports, which take seconds. Until then this one ends the process. It knows nothing
of the service but its name.
"""

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from types import FrameType


def main(arguments: Sequence[str]) -> None:
    """Run the named module as `python -m` would, with the flags that follow.

    A signal that comes before the module has handlers of its own exits with 0, as a service that is
    stopped while it starts does.
    """
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m dualpace.core.launch MODULE [FLAG ...]\n")
        sys.exit(2)
    module, *flags = arguments

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        os.write(2, f"{module} stopped while starting: {signal.Signals(number).name}\n".encode())
        os._exit(0)  # nothing is open yet, and an exception might be caught by an import

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
