"""Interrupted runs go on, whatever the interruption left."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.errors import ProfileError
from dualpace.profiler.journal import Journal
from dualpace.profiler.timing import Summary

IDENTITY: dict[str, object] = {"model": "m", "threads": 2}
RESULTS = {f"host/head/{n}": Summary(1.5 * n, 0.01, 5, n % 2 == 0, n) for n in range(1, 5)}


def write(path: Path, count: int = 4) -> None:
    with Journal(path, IDENTITY) as journal:
        for key, summary in list(RESULTS.items())[:count]:
            journal.add(key, summary)


def test_results_are_taken_over_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "p.partial"
    write(path, 2)
    with Journal(path, IDENTITY) as journal:
        assert journal.resumed == 2
        journal.add("host/head/4", RESULTS["host/head/4"])
    with Journal(path, IDENTITY) as journal:
        assert journal.results == {k: RESULTS[k] for k in [*list(RESULTS)[:2], "host/head/4"]}
        journal.finish()
    assert not path.exists()


@given(cut=st.integers(0, 2000))
def test_a_file_cut_anywhere_keeps_what_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("j") / "p.partial"
    write(path)
    data = path.read_bytes()
    whole = data[:cut].count(b"\n") - 1  # but for the header
    path.write_bytes(data[:cut])
    with Journal(path, IDENTITY) as journal:
        kept = list(journal.results.items())
        assert kept == list(RESULTS.items())[: len(kept)]
        assert max(0, whole) <= len(kept) <= max(0, whole) + 1  # a last newline may be missing
        journal.add("more", RESULTS["host/head/1"])
    with Journal(path, IDENTITY) as journal:
        assert list(journal.results) == [*dict(kept), "more"]


@pytest.mark.parametrize("data", ["", "x", "{}\n{}\n", '{"measures": {"model": "n"}}\n'])
def test_a_journal_of_anything_else_is_not_used(tmp_path: Path, data: str) -> None:
    path = tmp_path / "p.partial"
    path.write_text(data)
    with Journal(path, IDENTITY) as journal:
        assert journal.resumed == 0


def test_other_settings_or_a_wish_make_it_start_anew(tmp_path: Path) -> None:
    path = tmp_path / "p.partial"
    write(path)
    with Journal(path, IDENTITY, restart=True) as journal:
        assert journal.resumed == 0
    write(path)
    with Journal(path, IDENTITY | {"threads": 3}) as journal:
        assert journal.resumed == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"nowhere.*cannot be written"):
        Journal(tmp_path / "nowhere" / "p", IDENTITY)
