"""The node that is emulated: a preset's GPU beside this machine's host, and who runs where."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dualpace.cli.cores import core_plan, service_cores
from dualpace.cli.settings import ServeSettings
from dualpace.pinning import NodePlan
from dualpace.profiles import read_profile
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile import Profile


def emulated_profile(gpu: str, model: str, measured: Path) -> Profile:
    """Return a preset's GPU under a preset's model, beside the host that was measured.

    The host computes another model than the GPU pretends to: what counts is that both sides take
    times of a like order, as they do on a node with a large model.
    """
    preset = preset_profile(gpu, "xeon-4510-120", model)
    return dataclasses.replace(
        read_profile(measured),
        gpu_name=preset.gpu_name,
        gpu=preset.gpu,
        gpu_prefill_attention=preset.gpu_prefill_attention,
    )


def node_plan(gpu: str) -> NodePlan:
    """Return the cores of a served node beside an emulated GPU: `dualpace serve --pinning=on`."""
    plan = core_plan(_settings(gpu))
    assert plan is not None
    return plan


def measure_host(folder: Path, gpu: str) -> Path:
    """Measure this host's compute cores now; returns the profile.

    A machine that others use as well is not as fast at all times: measure next to what is compared.
    """
    cores = service_cores("cpu-engine", _settings(gpu))
    path = folder / "host.json"
    flags = [f"--{name}={value}" for name, value in cores.items()]
    command = [sys.executable, "-m", "dualpace.cli", "profile", "--quick", f"--out={path}"]
    subprocess.run(  # noqa: S603 - our own command, no shell
        [*command, f"--device=emulated:{gpu}", *flags],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return path


@contextmanager
def running_on(cpus: Iterable[int]) -> Iterator[None]:
    """Keep this thread on these CPUs for as long as the context lasts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _settings(gpu: str) -> ServeSettings:
    return ServeSettings(pinning="on", device=f"emulated:{gpu}")
