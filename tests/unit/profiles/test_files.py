"""Profile files: all or nothing, and refused by name."""

import json
from pathlib import Path

import pytest

from dualpace.core.errors import ProfileError
from dualpace.profiles import read_profile, write_profile
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile_json import profile_to_json

PROFILE = preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, PROFILE)
    assert read_profile(path) == PROFILE
    assert [p.name for p in tmp_path.iterdir()] == ["profile.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.mkdir()  # cannot be replaced by a file
    with pytest.raises(ProfileError, match="cannot be written"):
        write_profile(path, PROFILE)
    assert [p.name for p in tmp_path.iterdir()] == ["profile.json"]
    with pytest.raises(ProfileError, match="cannot be written"):
        write_profile(tmp_path / "nowhere" / "profile.json", PROFILE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON document"),
        (b"\xff\xfe", "no JSON document"),
        (b"[" * 100_000, "no JSON document"),
        (b"[]", "profile: an object is needed"),
        (json.dumps(profile_to_json(PROFILE) | {"origin": "dreamt"}).encode(), "profile.origin"),
        (b" " * (5 << 20), "over 4 MiB"),
    ],
    ids=["empty", "not-text", "deep", "list", "wrong-value", "huge"],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=message) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"profile\.json: No such file"):
        read_profile(tmp_path / "profile.json")
