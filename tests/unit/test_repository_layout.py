"""The layout rules that tools do not check by themselves."""

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOTS = [
    REPOSITORY / "libs",
    REPOSITORY / "kernels",
    REPOSITORY / "bench",
    REPOSITORY / "operator",
    *sorted(path for path in (REPOSITORY / "services").iterdir() if path.is_dir()),
]
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def packages_in(namespace: Path) -> list[Path]:
    return sorted(path for path in namespace.iterdir() if (path / "__init__.py").exists())


def test_only_leaf_packages_have_an_init() -> None:
    """`dualpace` is a namespace: one `__init__.py` in it would hide the other roots."""
    above = [REPOSITORY / "services", *ROOTS, *(root / "dualpace" for root in ROOTS)]
    assert [relative(path) for path in above if (path / "__init__.py").exists()] == []


def test_every_folder_in_the_namespace_is_a_package() -> None:
    for root in ROOTS:
        folders = {p for p in (root / "dualpace").iterdir() if p.is_dir()}
        assert {p for p in folders if p.name != "__pycache__"} == set(
            packages_in(root / "dualpace")
        )


def test_the_wheel_ships_every_package() -> None:
    on_disk = {
        f"dualpace/{package.name}": relative(package)
        for root in ROOTS
        for package in packages_in(root / "dualpace")
    }
    assert SETTINGS["tool"]["scikit-build"]["wheel"]["packages"] == on_disk


def test_the_type_checker_sees_every_root() -> None:
    seen = {
        path.removeprefix("$MYPY_CONFIG_FILE_DIR/")
        for path in SETTINGS["tool"]["mypy"]["mypy_path"]
    }
    assert seen == {relative(root) for root in ROOTS}


def test_the_layer_contracts_name_every_package() -> None:
    named = (REPOSITORY / ".importlinter").read_text().split("include_external_packages")[0].split()
    packages = {f"dualpace.{p.name}" for root in ROOTS for p in packages_in(root / "dualpace")}
    assert {name for name in named if name.startswith("dualpace.")} == packages
