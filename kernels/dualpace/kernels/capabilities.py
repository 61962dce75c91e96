"""What the native kernels can do in this process: instruction sets, compiler, OpenMP runtime.

Dispatch takes the best instruction set that both the processor and the operating system support;
avx512bf16 only where its arithmetic is as fast as that of whole numbers.
The environment variable DUALPACE_MAX_ISA, read once at import, caps it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dualpace.core.errors import SettingsError
from dualpace.kernels import _native

MAX_ISA_VARIABLE = "DUALPACE_MAX_ISA"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A snapshot; `str()` is one line for a start-up log."""

    isa: str
    """Used unless a call asks for another."""
    available: tuple[str, ...]
    """Compiled, and supported by this machine; rising. A call may ask for any of them."""
    compiled: tuple[str, ...]
    """In this build; rising."""
    max_isa: str | None
    """The cap from the environment; None: no cap."""
    passed_over: str | None
    """A better level that is not used: its bfloat16 arithmetic was measured, and whole numbers are
    clearly faster here, and closer. None: there is none."""
    tile_refusal: str
    """Why tiles (AMX) that the processor has are not used; empty: it has none, or they are."""
    compiler: str
    openmp_runtime: str
    """File of the OpenMP runtime that the kernels call."""
    openmp_threads: int
    """Threads that runtime would use by itself; each call names its own number."""

    def __str__(self) -> str:
        cap = f", capped by {MAX_ISA_VARIABLE}={self.max_isa}" if self.max_isa is not None else ""
        over = f", {self.passed_over} passed over" if self.passed_over is not None else ""
        refused = f"; no tiles: {self.tile_refusal}" if self.tile_refusal else ""
        return (
            f"kernels: isa {self.isa} of {', '.join(self.available)}{over}{cap}{refused}; "
            f"{self.compiler}; "
            f"OpenMP {self.openmp_runtime}, {self.openmp_threads} threads"
        )


def apply_environment(environ: Mapping[str, str]) -> None:
    """Cap dispatch as `environ` says. Raises SettingsError if the value is no instruction set."""
    name = environ.get(MAX_ISA_VARIABLE)
    try:
        _native.set_max_isa(name)
    except ValueError as error:
        raise SettingsError(f"{MAX_ISA_VARIABLE}: {str(error).removeprefix('isa: ')}") from None


def capabilities() -> Capabilities:
    """Return what the kernels can do here."""
    return Capabilities(
        isa=_native.dispatched_isa(),
        available=tuple(_native.available_isas()),
        compiled=tuple(_native.compiled_isas()),
        max_isa=_native.max_isa(),
        passed_over=_native.passed_over_isa(),
        tile_refusal=_native.tile_refusal(),
        compiler=_native.compiler(),
        openmp_runtime=_native.openmp_runtime(),
        openmp_threads=_native.openmp_max_threads(),
    )


apply_environment(os.environ)
