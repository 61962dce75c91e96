"""Which flags reach which service: what was set, what serve must choose, and nothing else."""

from pathlib import Path

import pytest

from dualpace.cli.services import check_environment, service_flags
from dualpace.cli.settings import ServeSettings
from dualpace.core.errors import SettingsError


def flags_of(
    service: str, settings: ServeSettings, environ: dict[str, str] | None = None
) -> dict[str, str]:
    flags = service_flags(
        service,
        settings,
        model=Path("/m"),
        run_dir=Path("/r"),
        fds={"lifeline_fd": 5},
        environ=environ or {},
    )
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags)


def test_defaults_are_left_to_the_services() -> None:
    flags = flags_of("gpu-engine", ServeSettings())
    assert set(flags) == {"model", "run-dir", "termination-log", "lifeline-fd", "threads", "dtype"}


def test_what_was_set_reaches_its_service() -> None:
    settings = ServeSettings(arena_mib=77, placement="cpu", log_level="debug", dtype="bfloat16")
    gpu, cpu = flags_of("gpu-engine", settings), flags_of("cpu-engine", settings)
    assert (gpu["arena-mib"], gpu["placement"], gpu["log-level"]) == ("77", "cpu", "debug")
    assert (cpu["dtype"], cpu["log-level"]) == ("bfloat16", "debug")
    assert "arena-mib" not in cpu
    assert flags_of("gateway", settings)["log-level"] == "debug"


def test_a_services_own_variable_wins_over_what_serve_would_choose() -> None:
    environ = {"DUALPACE_CPU_ENGINE_THREADS": "7"}
    assert "threads" not in flags_of("cpu-engine", ServeSettings(), environ)
    assert "threads" in flags_of("gpu-engine", ServeSettings(), environ)


def test_both_engines_share_the_cpus_when_one_stands_in_for_the_device() -> None:
    counts = [int(flags_of(s, ServeSettings())["threads"]) for s in ("gpu-engine", "cpu-engine")]
    assert min(counts) >= 1
    assert abs(counts[0] - counts[1]) <= 1


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (ServeSettings(model="org/name@main"), "org/name"),
        (ServeSettings(model="org/name", served_model_name="a,b"), "a,b"),
        (ServeSettings(model="demo"), None),
        (ServeSettings(model="/dev/shm"), None),
    ],
)
def test_a_hub_model_goes_by_its_name_there(settings: ServeSettings, name: str | None) -> None:
    assert flags_of("gateway", settings).get("served-model-name") == name


def test_unknown_variables_are_refused_by_name() -> None:
    check_environment({"DUALPACE_GPU_ENGINE_ARENA_MIB": "3", "DUALPACE_MAX_ISA": "avx2", "X": "y"})
    with pytest.raises(SettingsError, match="unknown environment variable DUALPACE_ARENA_MIB"):
        check_environment({"DUALPACE_ARENA_MIB": "3"})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device": "gpu"}, "device: 'gpu' is not cpu, cuda, cuda:<index> or emulated"),
        ({"placement": "x"}, "placement: 'x' is not one of"),
        ({"port": 70000}, "port: 70000 is not in 0..65535"),
        ({"drain_grace_s": -1.0}, "drain_grace_s must not be negative"),
    ],
)
def test_bad_settings_are_named_before_anything_starts(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        ServeSettings(**changes)  # type: ignore[arg-type]
