"""Loads the OpenMP runtime that the native module calls, before that module. Imports no PyTorch.

Two OpenMP runtimes in one process keep two thread pools that fight for the same cores. PyTorch's
wheels bring a runtime of their own, under a name that differs between wheels; so the native module
is linked to none, and takes its symbols from the one that PyTorch uses or would use.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

_SYSTEM_NAME = "libgomp.so.1"


def load_openmp_runtime() -> None:
    """Make exactly one libgomp's symbols global: PyTorch's where there is one, else the system's.

    Raises ImportError if there is neither.
    """
    bundled = _bundled_with_torch()
    name = bundled.name if bundled else _SYSTEM_NAME
    # Whatever bears that name already is what PyTorch is, or would be, bound to.
    if _load(name, os.RTLD_NOLOAD) is None:
        return
    error = _load(str(bundled or name))
    if error is not None:
        raise ImportError(
            f"the GNU OpenMP runtime is needed and was not found: {error}; install {_SYSTEM_NAME}"
        )


def _load(name: str, flags: int = 0) -> OSError | None:
    try:
        ctypes.CDLL(name, mode=os.RTLD_GLOBAL | flags)
    except OSError as error:
        return error
    return None


def _bundled_with_torch() -> Path | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    for folder in (package / "lib", package.parent / "torch.libs"):
        for file in sorted(folder.glob("libgomp*.so*")):
            return file
    return None
