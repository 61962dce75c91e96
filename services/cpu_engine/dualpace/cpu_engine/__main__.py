"""Entry point of the cpu-engine: settings, wiring, start and stop."""

import logging
import os
import sys
from pathlib import Path

import torch

from dualpace.checkpoint import Checkpoint, open_checkpoint
from dualpace.core.clock import SystemClock
from dualpace.core.errors import SettingsError
from dualpace.core.logs import configure_logging
from dualpace.core.process import StopRequest, run_service
from dualpace.core.request import Engine
from dualpace.core.settings import parse_settings
from dualpace.cpu_engine.engine import STATUS_INTERVAL_S, CpuEngine
from dualpace.cpu_engine.runner import HostRunner
from dualpace.cpu_engine.settings import CpuEngineSettings
from dualpace.ipc.arena import Arena
from dualpace.ipc.channel import CpuInput, Inbox
from dualpace.ipc.engine_server import EngineFacts, EngineServer
from dualpace.ipc.handoff import HandoffServer
from dualpace.ipc.rpc import CPU_SOCKET, engine_handler, handoff_handler
from dualpace.ipc.serving import io_thread, serve_socket
from dualpace.models.arena_pool import TORCH_DTYPES
from dualpace.models.decoder import Decoder
from dualpace.models.host_attention import host_attention
from dualpace.models.loader import load_decoder
from dualpace.models.progress import log_progress
from dualpace.scheduling.cpu import HostLimits, HostScheduler

log = logging.getLogger("dualpace.cpu_engine")


def main() -> int:
    """Run the service; returns its exit status."""
    try:
        settings = parse_settings(
            CpuEngineSettings,
            sys.argv[1:],
            os.environ,
            program="dualpace-cpu-engine",
            prefix="DUALPACE_CPU_ENGINE_",
        )
    except SettingsError as error:
        configure_logging("cpu-engine")
        log.critical("%s", error)
        return 2
    configure_logging("cpu-engine", level=settings.log_level, json_lines=settings.log_json)
    stop = StopRequest()
    stop.install_signals()
    if settings.lifeline_fd is not None:
        stop.watch_lifeline(settings.lifeline_fd)
    return run_service("cpu-engine", lambda: _serve(settings, stop))


def _serve(settings: CpuEngineSettings, stop: StopRequest) -> None:
    torch.set_num_threads(settings.num_threads)
    run_dir = Path(settings.run_dir)
    checkpoint = open_checkpoint(Path(settings.model))
    decoder = None
    if settings.dtype != "auto":  # else the arena says
        decoder = _load(checkpoint, getattr(torch, settings.dtype))
    log.info("waiting for the arena in %s", run_dir)
    arena = Arena.attach(
        run_dir,
        checkpoint.fingerprint,
        timeout_s=settings.attach_timeout_s,
        give_up=lambda: stop.requested,
    )
    geometry = arena.geometry
    if decoder is None:
        decoder = _load(checkpoint, TORCH_DTYPES[geometry.kv_dtype])
    attention = host_attention(settings.num_threads)
    scheduler = HostScheduler(
        HostLimits(
            num_blocks=geometry.num_blocks,
            block_size=geometry.block_size,
            num_slots=geometry.num_slots,
            max_batch=settings.max_batch,
        )
    )
    facts = EngineFacts(
        engine=Engine.CPU,
        model_fingerprint=checkpoint.fingerprint,
        max_model_len=min(geometry.max_blocks_per_sequence, geometry.num_blocks)
        * geometry.block_size,
        vocab_size=checkpoint.config.vocab_size,
    )
    inbox: Inbox[CpuInput] = Inbox()
    stop.on_stop(inbox.wake)
    with io_thread() as io:
        gateways = EngineServer(io, facts, inbox.put)
        device = HandoffServer(io, arena.generation, inbox.put)
        engine = CpuEngine(
            scheduler=scheduler,
            runner=HostRunner(decoder, arena, attention),
            arena=arena,
            inbox=inbox,
            gateways=gateways,
            device=device,
            clock=SystemClock(),
        )
        handlers = (engine_handler(gateways.session), handoff_handler(device.session))
        with serve_socket(io, run_dir / CPU_SOCKET, handlers):
            log.info(
                "ready: %d threads, %s, %d KV blocks of %d tokens, %d slots",
                settings.num_threads,
                str(decoder.dtype).removeprefix("torch."),
                geometry.num_blocks,
                geometry.block_size,
                geometry.num_slots,
            )
            while not stop.requested:
                if not engine.step():
                    inbox.wait(STATUS_INTERVAL_S)
    arena.close()
    log.info("cpu-engine stops: %s", stop.reason)


def _load(checkpoint: Checkpoint, dtype: torch.dtype) -> Decoder:
    return load_decoder(
        checkpoint,
        dtype=dtype,
        device=torch.device("cpu"),
        progress=log_progress(log, "loading weights"),
    )


if __name__ == "__main__":
    sys.exit(main())
