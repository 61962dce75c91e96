"""Between processes: the shared-memory arena, and the ordered channels that control it."""

import os

# Read when gRPC loads, so set before anything here imports it: the library would otherwise print
# lines of its own between those of our log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
