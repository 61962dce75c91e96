"""What may be asked of the profiler."""

from pathlib import Path

import pytest

from dualpace.core.errors import SettingsError
from dualpace.profiler.settings import ProfilerSettings


def test_the_profile_goes_where_it_was_asked_for(tmp_path: Path) -> None:
    assert ProfilerSettings().target == Path("profile.json")
    assert ProfilerSettings().journal == Path("profile.json.partial")
    out = str(tmp_path / "p.json")
    assert ProfilerSettings(out=out, report="/r").target == tmp_path / "p.json"
    report_only = ProfilerSettings(report="/r")
    assert report_only.target is None and report_only.journal.parent.is_dir()


@pytest.mark.parametrize(
    ("device", "on_cuda", "emulated"),
    [
        ("cpu", False, None),
        ("cuda", True, None),
        ("cuda:1", True, None),
        ("emulated:t4", False, "t4"),
    ],
)
def test_devices(device: str, on_cuda: bool, emulated: str | None) -> None:
    settings = ProfilerSettings(device=device)
    assert (settings.on_cuda, settings.emulated) == (on_cuda, emulated)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "device: 'tpu'"),
        ({"device": "cuda:x"}, "device: 'cuda:x'"),
        ({"device": "emulated:"}, "gpu: '' is not one of"),
        ({"threads": -1}, "threads must not be negative"),
        ({"block_size": 24}, "a positive multiple of 16"),
        ({"itl_target_ms": 0.0}, "itl_target_ms must be positive"),
        ({"out": "/nowhere/at/all.json"}, "out: /nowhere/at is not a directory"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ProfilerSettings(**changes)  # type: ignore[arg-type]
