"""Entry point of the profiler: measure, or draw what was measured."""

import sys

from dualpace.core.process import StopRequest
from dualpace.core.service import service_main
from dualpace.profiler.settings import ProfilerSettings


def main() -> int:
    """Run a subcommand, or measure; returns the exit status."""
    if sys.argv[1:2] == ["show"]:
        from dualpace.profiler.show import show_command  # noqa: PLC0415 - loads matplotlib

        return show_command(sys.argv[2:])
    return service_main("profiler", ProfilerSettings, _profile)


def _profile(settings: ProfilerSettings, stop: StopRequest) -> None:
    from dualpace.profiler.run import profile_node  # noqa: PLC0415 - loads torch

    profile_node(settings, stop)


if __name__ == "__main__":
    sys.exit(main())
