"""Settings come from flags, then variables, then defaults; whatever is wrong is named."""

from dataclasses import dataclass

import pytest

from dualpace.core.errors import SettingsError
from dualpace.core.settings import parse_settings, require, setting, to_flags


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example."""

    path: str = setting("A path.")
    count: int = setting("A count.", default=3)
    share: float = setting("A share, in %.", default=0.5)
    kind: str = setting("A kind.", default="a", choices=("a", "b"))
    verbose: bool = setting("Whether to say more.", default=False)
    limit: int | None = setting("A limit.", default=None)

    def __post_init__(self) -> None:
        require(self.count > 0, "count must be positive")


def parse(*argv: str, **environ: str) -> Example:
    return parse_settings(Example, argv, environ, program="example", prefix="EX_")


def test_flags_win_over_variables_over_defaults() -> None:
    settings = parse("--path=p", "--count", "7", EX_COUNT="8", EX_LIMIT="9", OTHER="x")
    assert settings == Example(path="p", count=7, limit=9)


@pytest.mark.parametrize(
    ("argv", "environ", "complaint"),
    [
        ([], {}, "--path .* is required"),
        (["--path=p", "--count=x"], {}, "--count: 'x' is not a whole number"),
        (["--path=p", "--count=1.5"], {}, "--count: '1.5' is not a whole number"),
        (["--path=p"], {"EX_SHARE": "much"}, "EX_SHARE: 'much' is not a number"),
        (["--path=p", "--verbose=maybe"], {}, "--verbose: 'maybe' is not true or false"),
        (["--path=p", "--kind=c"], {}, "--kind: 'c' is not one of a, b"),
        (["--path=p", "--count=0"], {}, "count must be positive"),
        (["--path=p", "--cout=3"], {}, "unknown argument --cout; did you mean --count"),
        (["--path=p", "--coun=3"], {}, "unknown argument --coun; did you mean --count"),
        (["--path=p", "--zebra"], {}, "unknown argument --zebra .see --help"),
        (["--path=p", "stray"], {}, "unknown argument stray"),
        (["--path=p"], {"EX_COUTN": "3"}, "unknown environment variable EX_COUTN"),
    ],
)
def test_what_is_wrong_is_named(argv: list[str], environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        parse(*argv, **environ)


def test_a_switch_may_stand_alone() -> None:
    assert parse("--verbose", "--path=p").verbose
    assert parse("--path=p", "--verbose").verbose
    assert not parse("--path=p", "--verbose=false").verbose


def test_an_empty_text_unsets_an_optional_setting() -> None:
    assert parse("--path=p", "--limit=", EX_LIMIT="5").limit is None


def test_flags_built_from_settings_build_the_same_settings() -> None:
    settings = Example(path="a b", count=2, share=0.25, kind="b", verbose=True, limit=4)
    assert parse(*to_flags(settings)) == settings


def test_help_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "--share" in text
    assert "A share, in %." in text
    assert "default 0.5" in text
