"""Every instruction set and every element type, each skip with its reason."""

import pytest

from dualpace.kernels import capabilities
from tests.kernels.calls import DTYPES


@pytest.fixture(scope="session", params=["generic", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in capabilities().compiled:
        pytest.skip(f"{name} is not compiled for this processor family")
    if name not in capabilities().available:
        pytest.skip(f"this machine does not run {name}")
    return name


@pytest.fixture(scope="session", params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
