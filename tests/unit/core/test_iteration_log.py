"""What engines note of their iterations."""

from pathlib import Path

import pytest

from dualpace.core.errors import SettingsError
from dualpace.core.iteration_log import Iteration, open_iteration_log, read_iterations

SOME = [
    Iteration(begin_s=1.25, end_s=1.5, requests=[1 << 63, 2], rows=2, kv_tokens=70, route="host"),
    Iteration(begin_s=1.5, end_s=1.625, requests=[], rows=256, kv_tokens=0),
]


def test_what_is_noted_is_read_while_the_engine_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = open_iteration_log(str(path))
    assert log is not None
    for count, iteration in enumerate(SOME, 1):
        log.note(iteration)
        assert read_iterations(path) == SOME[:count]
    log.close()
    with path.open("a") as file:
        file.write('{"begin_s": 2')  # an engine was killed
    assert read_iterations(path) == SOME


def test_none_is_kept_unless_asked_for_and_a_bad_path_is_named(tmp_path: Path) -> None:
    assert open_iteration_log(None) is None
    with pytest.raises(SettingsError, match=r"iteration_log: .*nowhere"):
        open_iteration_log(str(tmp_path / "nowhere" / "log"))
