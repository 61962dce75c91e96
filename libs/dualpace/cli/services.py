"""The flags of each service of a node, from the settings of `dualpace serve`.

A flag is passed only if a person set it or `serve` has reason to: otherwise the service's own
default holds, or the service's own variable (DUALPACE_GPU_ENGINE_…), which a flag would override.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from dualpace.cli.cores import service_cores
from dualpace.cli.settings import ServeSettings
from dualpace.core.errors import SettingsError

MODULES = {
    "gpu-engine": "dualpace.gpu_engine",
    "cpu-engine": "dualpace.cpu_engine",
    "gateway": "dualpace.gateway",
}
_GPU = (
    "device",
    "placement",
    "device_kv_mib",
    "arena_mib",
    "host_slots",
    "max_model_len",
    "max_running",
    "token_budget",
)
_CPU = ("assist", "profile")
_ALL = ("log_level", "log_json")
_OTHER_VARIABLES = ("DUALPACE_MAX_ISA", "DUALPACE_NO_KERNELS")


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise SettingsError for a DUALPACE_ variable that nothing reads."""
    prefixes = ["DUALPACE_SERVE_", *(_prefix(service) for service in MODULES)]
    for name in environ:
        known = name.startswith(tuple(prefixes)) or name in _OTHER_VARIABLES
        if name.startswith("DUALPACE_") and not known:
            raise SettingsError(
                f"unknown environment variable {name}; those of `dualpace serve` begin with"
                f" DUALPACE_SERVE_, those of its services with {', '.join(prefixes[1:])}"
            )


def termination_log(service: str, run_dir: Path) -> Path:
    """Return the file in which a service leaves the reason of a failure."""
    return run_dir / f"{service}.reason"


def service_flags(
    service: str,
    settings: ServeSettings,
    *,
    model: Path,
    run_dir: Path,
    fds: Mapping[str, int],
    environ: Mapping[str, str],
) -> list[str]:
    """Return a service's flags. `fds` are descriptors it inherits, by the name of their setting."""
    flags = [
        f"--model={model}",
        f"--run-dir={run_dir}",
        f"--termination-log={termination_log(service, run_dir)}",
        *(f"--{name.replace('_', '-')}={fd}" for name, fd in fds.items()),
    ]
    wanted = {name: getattr(settings, name) for name in _changed(settings)}
    names = {"gpu-engine": (*_GPU, *_ALL), "cpu-engine": (*_CPU, *_ALL), "gateway": _ALL}[service]
    chosen = {name: wanted[name] for name in names if name in wanted}
    chosen |= {
        name: value
        for name, value in _computed(service, settings).items()
        # A variable of the service's own wins over what serve would choose by itself.
        if name in wanted or _prefix(service) + name.upper() not in environ
    }
    if service == "gateway":  # the supervisor waits as long
        chosen["drain_grace_s"] = settings.drain_grace_s
    flags.extend(f"--{name.replace('_', '-')}={value}" for name, value in chosen.items())
    return flags


def _computed(service: str, settings: ServeSettings) -> dict[str, object]:
    """Return what serve chooses for a service where nobody else does."""
    pins = service_cores(service, settings)
    if service == "gateway":
        name = _model_name(settings)
        return pins if name is None else {"served_model_name": name} | pins
    return {"threads": _threads(service, settings.device), "dtype": _dtype(settings)} | pins


def _changed(settings: ServeSettings) -> list[str]:
    fields = dataclasses.fields(settings)
    return [f.name for f in fields if getattr(settings, f.name) != f.default]


def _prefix(service: str) -> str:
    return f"DUALPACE_{service.upper().replace('-', '_')}_"


def _model_name(settings: ServeSettings) -> str | None:
    """A hub model goes by its name there, not by the folder of the hub's cache."""
    if settings.served_model_name is not None:
        return settings.served_model_name
    if settings.model == "demo" or Path(settings.model).expanduser().exists():
        return None
    return settings.model.partition("@")[0]


def _dtype(settings: ServeSettings) -> str:
    """Say what `auto` means where that is known, so that both engines can load at once."""
    return "float32" if settings.dtype == "auto" and not _on_cuda(settings) else settings.dtype


def _on_cuda(settings: ServeSettings) -> bool:
    return settings.device.startswith("cuda")


def _threads(service: str, device: str) -> int:
    """Compute threads: halves where the CPU is the device too, else all but two to the host."""
    cpus = len(os.sched_getaffinity(0))
    if device == "cpu":
        gpu = max(1, cpus // 2)
        return gpu if service == "gpu-engine" else max(1, cpus - gpu)
    others = 1 if device.startswith("emulated") else 2  # a device that sleeps needs no core
    return 1 if service == "gpu-engine" else max(1, cpus - others)
