"""`dualpace fetch` puts a model where services look for it."""

from pathlib import Path

import pytest

from dualpace.cli.fetch import fetch_command


def test_the_link_leads_to_the_model_and_moves_with_it(tmp_path: Path) -> None:
    link = tmp_path / "current"
    for name in ("one", "two"):
        model = tmp_path / name
        model.mkdir()
        assert fetch_command([f"--model={model}", f"--link={link}"]) == 0
        assert link.resolve() == model
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current", "one", "two"]


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_command([f"--model={tmp_path}", f"--link={tmp_path}/no/such/place"]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert fetch_command(["--model=x"]) == 2
    assert "--link" in capsys.readouterr().err
