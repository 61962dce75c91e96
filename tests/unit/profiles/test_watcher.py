"""Watching a profile's file through every way in which such files change."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.core.errors import ProfileError
from dualpace.profiles import ProfileWatcher, for_model, write_profile
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.profile_json import profile_to_json

A = preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b")
B = preset_profile("rtx-4090", "xeon-4510-180", "llama-3.1-8b")


class Watched:
    """A watcher on a clock of its own."""

    def __init__(self, path: Path, **options: object) -> None:
        self.path = path
        self.now_s = 100.0
        self.watcher = ProfileWatcher(path, **options)  # type: ignore[arg-type]

    def after(self, seconds: float) -> Profile | None:
        """Poll ten times over so many seconds; return the new profile, if there was one."""
        new = None
        for _ in range(10):
            self.now_s += seconds / 10
            new = self.watcher.poll(self.now_s) or new
        return new


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    path = tmp_path / "profile.json"
    write_profile(path, A)
    watched = Watched(path)
    assert watched.watcher.load() == A
    return watched


def test_nothing_new_is_nothing(watched: Watched) -> None:
    assert watched.after(60.0) is None
    os.utime(watched.path)
    assert watched.after(60.0) is None
    assert (watched.watcher.loads, watched.watcher.refusals) == (1, 0)


def test_a_replaced_file_is_taken_once(watched: Watched) -> None:
    write_profile(watched.path, B)
    assert watched.after(2.0) == B
    assert watched.after(2.0) is None
    assert watched.watcher.profile == B


def test_a_file_written_in_place_is_taken(watched: Watched) -> None:
    text = json.dumps(profile_to_json(B))
    watched.path.write_text(text)
    assert watched.after(2.0) == B


def test_a_file_that_is_still_being_written_is_waited_for(watched: Watched) -> None:
    text = json.dumps(profile_to_json(B))
    for part in range(1, 6):
        watched.path.write_text(text[: len(text) * part // 5])
        if part < 5:
            assert watched.after(0.3) is None
    assert watched.after(2.0) == B
    assert watched.watcher.refusals == 0


def test_a_config_map_is_swapped_as_kubernetes_does_it(tmp_path: Path) -> None:
    for name, profile in (("..1", A), ("..2", B)):
        (tmp_path / name).mkdir()
        write_profile(tmp_path / name / "profile.json", profile)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "profile.json").symlink_to("..data/profile.json")
    watched = Watched(tmp_path / "profile.json")
    watched.watcher.load()
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert watched.after(2.0) == B


def test_what_is_no_good_is_refused_and_the_last_good_one_stays(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.path.write_text("{}")
    assert watched.after(60.0) is None
    assert watched.watcher.profile == A
    assert "profile.format: is missing" in watched.watcher.error
    assert watched.watcher.gauges()["profile_refused"] == 1.0
    assert [r.levelname for r in caplog.records] == ["WARNING"]  # once, not at every poll
    assert "the one before stays in force" in caplog.text
    write_profile(watched.path, B)
    assert watched.after(2.0) == B
    assert watched.watcher.error == ""
    assert watched.watcher.gauges()["profile_refused"] == 0.0


def test_a_file_that_goes_away_and_comes_back(watched: Watched) -> None:
    watched.path.unlink()
    assert watched.after(2.0) is None
    assert watched.watcher.profile == A and "No such file" in watched.watcher.error
    write_profile(watched.path, B)
    assert watched.after(2.0) == B


def test_one_that_appears_later_is_taken(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "profile.json")
    with pytest.raises(ProfileError, match="No such file"):
        watched.watcher.load()
    assert watched.after(2.0) is None
    write_profile(watched.path, A)
    assert watched.after(2.0) == A


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    mine, other = (
        dataclasses.replace(A, model=dataclasses.replace(A.model, fingerprint=f * 64)) for f in "ab"
    )
    watched = Watched(tmp_path / "profile.json", check=for_model("a" * 64))
    for profile in (mine, A):  # A is of any model of its shape
        write_profile(watched.path, profile)
        assert watched.after(2.0) == profile
    write_profile(watched.path, other)
    assert watched.after(2.0) is None
    assert "is another model" in watched.watcher.error


FILES = [json.dumps(profile_to_json(A)), json.dumps(profile_to_json(B)), "{", ""]


@given(st.lists(st.tuples(st.sampled_from([*FILES, None]), st.floats(0.0, 2.0)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_last_good_one_is_in_force(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str | None, float]]
) -> None:
    """In the end it is the file's, if that is good; never a bad one, never none after a good."""
    watched = Watched(tmp_path_factory.mktemp("w") / "profile.json")
    for text, pause_s in changes:
        if text is None:
            watched.path.unlink(missing_ok=True)
        else:
            watched.path.write_text(text)
        had = watched.watcher.profile
        new = watched.after(pause_s)
        assert new in (None, A, B)
        assert watched.watcher.profile == (new or had)
    watched.after(2.0)
    last = next((text for text, _ in reversed(changes)), None)
    if last in FILES[:2]:
        assert watched.watcher.profile == (A if last == FILES[0] else B)
        assert watched.watcher.error == ""
