"""The `dualpace` command."""

import sys
from importlib.metadata import version

from dualpace.cli.fetch import fetch_command
from dualpace.cli.lab import lab_command
from dualpace.cli.profile import profile_command
from dualpace.cli.serve import serve_command

_USAGE = """usage: dualpace <command> [flags]

commands:
  serve      serve a model on this machine: gateway, gpu-engine and cpu-engine under one supervisor
  profile    measure this machine with a model, and write its profile (`profile show FILE` draws it)
  lab        simulate scheduling policies: run, summary, figures
  fetch      download a model and link to it
  version    print the version

`dualpace <command> --help` lists a command's flags.
"""
_COMMANDS = {
    "serve": serve_command,
    "profile": profile_command,
    "lab": lab_command,
    "fetch": fetch_command,
}


def main() -> int:
    """Run a subcommand; returns the exit status."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    command, *rest = arguments
    if command in ("version", "--version"):
        print(f"dualpace {version('dualpace')}")
        return 0
    run = _COMMANDS.get(command)
    if run is not None:
        return run(rest)
    print(f"dualpace: unknown command {command!r}\n\n{_USAGE}", end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
