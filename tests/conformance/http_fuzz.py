"""Fuzzes the HTTP API by its own description: no 500, no answer that the description denies.

    make fuzz

schemathesis runs in an environment of its own, against the gateway in front of a stub engine. Too
slow for `make test`: a few minutes.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
SCHEMATHESIS = "schemathesis==4.32.5"
CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance"


def main() -> int:
    """Return the status of schemathesis."""
    sys.path.insert(0, str(BENCH))
    from gateway.client import serving  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory, serving("gateway") as server:
        venv.create(directory, with_pip=True)
        binaries = Path(directory) / "bin"
        subprocess.run([binaries / "pip", "install", "-q", SCHEMATHESIS], check=True)
        url = f"http://127.0.0.1:{server.port}/openapi.json"
        # Some of what is made up asks for a hundred long texts, which take their time.
        options = [f"--checks={CHECKS}", "--max-examples=25", "--max-time=150"]
        options.append("--request-timeout=60")
        command = [str(binaries / "st"), "run", url, *options]
        # It keeps what it found in the folder where it runs.
        return subprocess.run(command, check=False, cwd=directory).returncode


if __name__ == "__main__":
    sys.exit(main())
