"""Every instruction set and every element type, each skip with its reason."""

import pytest

from dualpace.kernels import capabilities
from tests.kernels.calls import DTYPES

ATTENTION_LEVELS = ["generic", "avx2", "avx512", "portable-avx512"]
"""avx512vnni and avx512bf16 have no attention of their own: they take that of avx512, as amxbf16
does in fp32."""
TILE_LEVELS = ["amxbf16", "portable-amxbf16"]
LINEAR_LEVELS = [*ATTENTION_LEVELS, "avx512bf16", "portable-avx512bf16", *TILE_LEVELS]
"""avx512vnni computes whole numbers in other instructions, to the same bits, and nothing else."""


def runnable(name: str) -> str:
    if name.startswith("portable"):
        return name
    if name not in capabilities().compiled:
        pytest.skip(f"{name} is not compiled for this processor family")
    if name not in capabilities().available:
        pytest.skip(f"this machine does not run {name}")
    return name


@pytest.fixture(scope="session", params=ATTENTION_LEVELS)
def isa(request: pytest.FixtureRequest) -> str:
    return runnable(request.param)


@pytest.fixture(scope="session", params=LINEAR_LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """Every level of linear maps."""
    return runnable(request.param)


@pytest.fixture(scope="session", params=TILE_LEVELS)
def tiled(request: pytest.FixtureRequest) -> str:
    """Every level with tiles."""
    return runnable(request.param)


@pytest.fixture(scope="session", params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
