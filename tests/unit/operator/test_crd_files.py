"""The command that writes the CRDs: it writes where it was told, and nowhere else."""

from pathlib import Path

import pytest

from dualpace.operator.crds import files, main


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--chekc", "out"], ["out", "other"], ["--check"]]
)
def test_anything_but_one_folder_writes_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(arguments)
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_is_fresh_until_it_is_edited(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    assert main(["--check", str(folder)]) == 1
    assert main([str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == set(files())
    assert main(["--check", str(folder)]) == 0
    edited = next(folder.iterdir())
    edited.write_text(edited.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    assert main(["--check", str(folder)]) == 1
