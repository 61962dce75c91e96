"""Entry point of the cpu-engine: settings, wiring, start and stop."""

import logging
import sys
from contextlib import closing
from pathlib import Path

import torch

from dualpace.checkpoint import Checkpoint, open_checkpoint
from dualpace.core.clock import SystemClock
from dualpace.core.errors import PeerLostError
from dualpace.core.iteration_log import open_iteration_log
from dualpace.core.process import StopRequest
from dualpace.core.request import Engine
from dualpace.core.service import service_main
from dualpace.cpu_engine.cores import CorePlan, plan_threads
from dualpace.cpu_engine.engine import CpuEngine
from dualpace.cpu_engine.report import HostReport, host_report, pin_compute
from dualpace.cpu_engine.routing import build_routing
from dualpace.cpu_engine.runner import HostRunner
from dualpace.cpu_engine.settings import CpuEngineSettings
from dualpace.cpu_engine.tracing import HostTracer
from dualpace.grammar import Grammars, vocabulary_of
from dualpace.ipc.arena import Arena
from dualpace.ipc.channel import CpuInput, Inbox
from dualpace.ipc.engine_server import EngineFacts, EngineServer
from dualpace.ipc.handoff import HandoffServer
from dualpace.ipc.layout import ArenaGeometry
from dualpace.ipc.lockstep import Lockstep
from dualpace.ipc.pulse import STATUS_INTERVAL_S
from dualpace.ipc.rpc import CPU_SOCKET, engine_handler, handoff_handler
from dualpace.ipc.serving import io_thread, serve_socket
from dualpace.models.arena_pool import TORCH_DTYPES, arena_pool
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.host_backend import HostBackend, host_backend
from dualpace.models.host_step import HostStep, host_step
from dualpace.models.loader import load_decoder
from dualpace.models.progress import log_progress
from dualpace.pinning import pin_process, read_topology, settle_pins
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.tracing import open_tracing

log = logging.getLogger("dualpace.cpu_engine")


def main() -> int:
    """Run the service; returns its exit status."""
    return service_main("cpu-engine", CpuEngineSettings, _serve)


def _serve(settings: CpuEngineSettings, stop: StopRequest) -> None:
    stop.install_signals()
    topology = read_topology()
    pins = pin_process(settings.cores, topology).pins
    cores = plan_threads(topology, pins, threads=settings.threads)
    torch.set_num_threads(cores.num_threads)
    backend = host_backend(
        settings.backend,
        cores.num_threads,
        weights=settings.weights,
        int8_group=settings.int8_group,
    )
    checkpoint = open_checkpoint(Path(settings.model))
    decoder = None
    if settings.dtype != "auto":  # else the arena says
        decoder = _load(backend, checkpoint, getattr(torch, settings.dtype), stop)
    log.info("waiting for the arena in %s", settings.run_dir)
    arena = Arena.attach(
        Path(settings.run_dir),
        checkpoint.fingerprint,
        timeout_s=settings.attach_timeout_s,
        check=stop.check,
    )
    if decoder is None:
        geometry = arena.geometry
        longest = geometry.max_blocks_per_sequence * geometry.block_size
        decoder = _load(backend, checkpoint, TORCH_DTYPES[geometry.kv_dtype], stop, longest)
    try:
        with closing(Grammars(vocabulary_of(checkpoint))) as grammars:
            _run(
                settings,
                cores=cores,
                backend=backend,
                decoder=decoder,
                arena=arena,
                facts=_facts(checkpoint, arena.geometry),
                grammars=grammars,
                stop=stop,
            )
    finally:
        arena.close()
    log.info("cpu-engine stops: %s", stop.reason)


def _run(
    settings: CpuEngineSettings,
    *,
    cores: CorePlan,
    backend: HostBackend,
    decoder: Decoder,
    arena: Arena,
    facts: EngineFacts,
    grammars: Grammars,
    stop: StopRequest,
) -> None:
    inbox: Inbox[CpuInput] = Inbox()
    stop.on_stop(inbox.wake)
    routing = build_routing(
        settings,
        decoder=decoder,
        arena=arena,
        attention=backend.attention,
        fingerprint=facts.model_fingerprint,
        clock=SystemClock(),
        num_threads=cores.num_threads,
    )
    with open_tracing("cpu-engine") as tracing, io_thread() as io:
        settle_pins()
        gateways = EngineServer(io, facts, inbox.put)
        device = HandoffServer(io, arena.generation, inbox.put)
        step = _step(settings, cores, decoder, arena, backend.attention)
        runner = HostRunner(step, arena, grammars, routing.borrower)
        engine = CpuEngine(
            scheduler=HostScheduler(_limits(settings, arena.geometry), routing.policy),
            runner=runner,
            borrower=routing.borrower,
            profile=routing.profile,
            lockstep=_lockstep(settings, arena),
            iterations=open_iteration_log(settings.iteration_log),
            tracer=None if tracing is None else HostTracer(tracing, SystemClock()),
            arena=arena,
            inbox=inbox,
            gateways=gateways,
            device=device,
            grammars=grammars,
            clock=SystemClock(),
        )
        handlers = (engine_handler(gateways.session), handoff_handler(device.session))
        with serve_socket(io, Path(settings.run_dir) / CPU_SOCKET, handlers):
            # Last: threads that are started afterwards inherit this one's processor.
            if cores.cpus:
                pin_compute(cores.cpus)
            report = host_report(decoder, step, cores, backend.name)
            runner.add_gauges(report.gauges())
            _log_ready(report, decoder, arena.geometry)
            while not stop.requested:
                if not engine.step():
                    inbox.wait(STATUS_INTERVAL_S)
                if engine.orphaned_s > settings.orphan_grace_s:
                    raise PeerLostError(
                        "the gpu-engine went away and nothing is left to decode here; "
                        "its successor makes a new arena"
                    )


def _lockstep(settings: CpuEngineSettings, arena: Arena) -> Lockstep | None:
    if not settings.lockstep:
        return None
    log.warning("lockstep: this engine keeps step with the gpu-engine")
    return Lockstep(Path(settings.run_dir), Engine.CPU, arena.heartbeat(Engine.GPU))


def _limits(settings: CpuEngineSettings, geometry: ArenaGeometry) -> HostLimits:
    return HostLimits(
        num_blocks=geometry.num_blocks,
        block_size=geometry.block_size,
        num_slots=geometry.num_slots,
        max_blocks_per_sequence=geometry.max_blocks_per_sequence,
        max_batch=settings.max_batch,
    )


def _facts(checkpoint: Checkpoint, geometry: ArenaGeometry) -> EngineFacts:
    longest = min(geometry.max_blocks_per_sequence, geometry.num_blocks)
    return EngineFacts(
        engine=Engine.CPU,
        model_fingerprint=checkpoint.fingerprint,
        max_model_len=longest * geometry.block_size,
        vocab_size=checkpoint.config.vocab_size,
        max_request_bytes=geometry.request_bytes,
    )


def _log_ready(report: HostReport, decoder: Decoder, geometry: ArenaGeometry) -> None:
    for line in report.lines():
        log.info("%s", line)
    log.info(
        "ready: %s, %d KV blocks of %d tokens, %d slots",
        str(decoder.dtype).removeprefix("torch."),
        geometry.num_blocks,
        geometry.block_size,
        geometry.num_slots,
    )


def _load(
    backend: HostBackend,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    stop: StopRequest,
    longest: int | None = None,
) -> Decoder:
    return load_decoder(
        checkpoint,
        dtype=dtype,
        device=torch.device("cpu"),
        linear=backend.linear,
        progress=log_progress(log, "loading weights", stop.check),
        max_positions=longest,
    )


def _step(
    settings: CpuEngineSettings,
    cores: CorePlan,
    decoder: Decoder,
    arena: Arena,
    attention: PagedAttention,
) -> HostStep:
    return host_step(
        decoder,
        arena_pool(arena),
        arena.block_tables,
        attention,
        num_threads=cores.num_threads,
        screen_head=settings.head_screen == "auto",
        rows_in_turns=None if settings.rows_in_turns == "auto" else 0,
    )


if __name__ == "__main__":
    sys.exit(main())
