"""The benchmarks are scripts, not a package of the wheel: they are found where they lie."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
