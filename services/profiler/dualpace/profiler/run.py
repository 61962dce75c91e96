"""One run of the profiler, from its settings to the file: load, measure, derive, write, tell."""

import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dualpace.checkpoint import Checkpoint, open_checkpoint, resolve_model
from dualpace.core.errors import ProfileError, StoppedError
from dualpace.core.process import StopRequest
from dualpace.ipc.bell import spin_s_for
from dualpace.pinning import pin_process
from dualpace.profiler.bench import Sample
from dualpace.profiler.copies import CopyBench
from dualpace.profiler.document import (
    Measured,
    build_profile,
    cells_evidence,
    model_shape,
)
from dualpace.profiler.doorbell import Doorbell
from dualpace.profiler.hardware import (
    fingerprint,
    hardware_facts,
    operator_topology,
    read_bandwidth_gbytes_per_s,
    waited_s,
)
from dualpace.profiler.journal import Journal
from dualpace.profiler.knots import QUICK_KNOTS, THOROUGH_KNOTS
from dualpace.profiler.report import write_report
from dualpace.profiler.settings import ProfilerSettings
from dualpace.profiler.sides import Node, load_node, serving_dtype
from dualpace.profiler.sweep import cells_of, run_sweep
from dualpace.profiler.thresholds import derive_thresholds
from dualpace.profiler.timing import QUICK, THOROUGH, Surroundings
from dualpace.profiles import write_profile
from dualpace.scheduling.profile import ModelShape, Profile, Source

log = logging.getLogger(__name__)


def profile_node(settings: ProfilerSettings, stop: StopRequest) -> None:
    """Measure and write. Raises ProfileError if it is interrupted; results so far are kept."""
    stop.install_signals()
    pin_process(settings.cores)
    started_s = time.monotonic()
    path = resolve_model(settings.model, progress=log.info)
    checkpoint = open_checkpoint(path)
    facts = hardware_facts(settings.device, settings.host_threads)
    identity = _identity(settings, checkpoint, facts)
    with Journal(settings.journal, identity, restart=settings.restart) as journal:
        if journal.resumed:
            log.info("going on where an earlier run stopped: %d results", journal.resumed)
        try:
            profile = _measure(settings, checkpoint, facts, journal, stop)
        except StoppedError as stopped:
            raise ProfileError(
                f"interrupted ({stop.reason}); {settings.journal} keeps {len(journal.results)}"
                " results, and the same command goes on from there"
            ) from stopped
        if settings.target is not None:
            write_profile(settings.target, profile)
        if settings.report is not None:
            write_report(Path(settings.report), profile, operator_topology())
        journal.finish()
    _tell(settings, profile, time.monotonic() - started_s)


def _measure(
    settings: ProfilerSettings,
    checkpoint: Checkpoint,
    facts: dict[str, Any],
    journal: Journal,
    stop: StopRequest,
) -> Profile:
    knots = QUICK_KNOTS if settings.quick else THOROUGH_KNOTS
    node = load_node(settings, checkpoint, knots, stop.check)
    patience = QUICK if settings.quick else THOROUGH
    around = Surroundings(now_s=time.monotonic, waited_s=waited_s, check=stop.check)
    with _device_cells(node) as (copies, sync):
        results = run_sweep(cells_of(node, copies, sync), journal, patience, around)
    measured = Measured(
        results=results,
        knots=node.knots,
        model=_shape(settings, checkpoint),
        config=checkpoint.config,
        device=_source(settings),
        preset=settings.emulated,
        gpu_name=_gpu_name(settings, facts),
        host_name=f"{facts['cpu']}, {settings.host_threads} threads, {facts['isa']}",
        hardware_fingerprint=fingerprint(facts),
    )
    profile = build_profile(measured, _evidence(settings, node, facts) | cells_evidence(measured))
    thresholds = derive_thresholds(profile, settings.itl_target_ms / 1e3)
    return dataclasses.replace(profile, thresholds=thresholds)


@contextmanager
def _device_cells(node: Node) -> Iterator[tuple[CopyBench | None, Sample | None]]:
    """Give what is measured between the two sides; nothing where one of them is an estimate."""
    if node.device is None:
        yield None, None
        return
    device = node.device
    copies = CopyBench(device.decoder.device, max(node.knots.sizes), device.synchronize)
    host_spin_s = spin_s_for(node.host.threads)
    device_spin_s = spin_s_for(device.threads)
    with Doorbell(host_spin_s=host_spin_s, device_spin_s=device_spin_s) as doorbell:
        yield copies, doorbell.one_way_ms


def _identity(
    settings: ProfilerSettings, checkpoint: Checkpoint, facts: dict[str, Any]
) -> dict[str, object]:
    """Return what results of an interrupted run must agree on with this one."""
    names = ("quick", "device", "dtype", "block_size", "memory_mib")
    return {
        "model": checkpoint.fingerprint.hex(),
        "hardware": fingerprint(facts),
        "version": version("dualpace"),
        "threads": settings.host_threads,
        "device_threads": settings.stand_in_threads,
    } | {name: getattr(settings, name) for name in names}


def _shape(settings: ProfilerSettings, checkpoint: Checkpoint) -> ModelShape:
    known = Path(settings.model).exists() or settings.model == "demo"
    name = checkpoint.path.name if known else settings.model
    size = serving_dtype(settings, checkpoint.config).itemsize
    return model_shape(checkpoint.config, name, checkpoint.fingerprint.hex(), size)


def _source(settings: ProfilerSettings) -> Source:
    if settings.emulated is not None:
        return Source.ESTIMATED
    return Source.MEASURED if settings.on_cuda else Source.STAND_IN


def _gpu_name(settings: ProfilerSettings, facts: dict[str, Any]) -> str:
    if settings.emulated is not None:
        return f"{settings.emulated} (estimated)"
    if settings.on_cuda:
        return str(facts["gpu"])
    return f"{facts['cpu']} in the role of a GPU, {settings.stand_in_threads} threads"


def _evidence(settings: ProfilerSettings, node: Node, facts: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(settings.host_threads)
    rate = read_bandwidth_gbytes_per_s(settings.host_threads)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": f"dualpace {version('dualpace')}",
        "quick": settings.quick,
        "device": settings.device,
        "dtype": str(node.host.decoder.dtype).removeprefix("torch."),
        "hardware": facts,
        "memory_read_gbytes_per_s": None if rate is None else round(rate, 2),
        "host_iterations": "stage by stage" if node.host.step is None else "native",
    }


def _tell(settings: ProfilerSettings, profile: Profile, seconds: float) -> None:
    cells, unstable = profile.evidence["cells"], profile.evidence["unstable"]
    where = settings.target or settings.report
    log.info("%s: %d results in %.0f s", where, len(cells), seconds)
    if unstable:
        log.warning(
            "%d of %d results are not steady, of %d of them most samples were disturbed by other"
            " processes: %s",
            len(unstable),
            len(cells),
            sum(2 * disturbed > samples for _, _, samples, disturbed in cells.values()),
            ", ".join(unstable[:4]) + (" …" if len(unstable) > 4 else ""),
        )
    for threshold in profile.thresholds:
        log.info("%s: %g %s; %s", threshold.name, threshold.value, threshold.unit, threshold.why)
