"""Entry point of the gpu-engine: settings, wiring, start and stop."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dualpace.checkpoint import Checkpoint, open_checkpoint
from dualpace.core.clock import SystemClock
from dualpace.core.errors import CapacityError, SettingsError
from dualpace.core.iteration_log import open_iteration_log
from dualpace.core.process import StopRequest
from dualpace.core.request import Engine
from dualpace.core.service import service_main
from dualpace.gpu_engine.dense_assist import DenseAssist
from dualpace.gpu_engine.device import CpuDevice, CudaDevice, Device
from dualpace.gpu_engine.emulation import emulated_costs
from dualpace.gpu_engine.engine import GpuEngine, Runner
from dualpace.gpu_engine.executor import EmulatedExecutor, Executor, Pools, TorchExecutor
from dualpace.gpu_engine.lending import Lending
from dualpace.gpu_engine.memory import MemoryPlan, longest_sequence, plan_memory
from dualpace.gpu_engine.offer import OfferKeeper
from dualpace.gpu_engine.settings import GpuEngineSettings
from dualpace.gpu_engine.tracing import StageTracer
from dualpace.grammar import Grammars, vocabulary_of
from dualpace.ipc.arena import Arena, require_space
from dualpace.ipc.assist_region import AssistRegion
from dualpace.ipc.bell import Bell, spin_s_for
from dualpace.ipc.channel import GpuInput, Inbox
from dualpace.ipc.engine_server import EngineFacts, EngineServer
from dualpace.ipc.handoff import HandoffClient
from dualpace.ipc.lockstep import Lockstep
from dualpace.ipc.pulse import STATUS_INTERVAL_S
from dualpace.ipc.rpc import CPU_SOCKET, GPU_SOCKET, engine_handler
from dualpace.ipc.serving import io_thread, serve_socket
from dualpace.models.arena_pool import arena_pool
from dualpace.models.attention import PagedAttention
from dualpace.models.host_attention import host_attention
from dualpace.models.kv_pool import KvPool
from dualpace.models.loader import load_decoder
from dualpace.models.progress import log_progress
from dualpace.models.torch_attention import TorchPagedAttention
from dualpace.pinning import pin_process, settle_pins
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.lease import AssistLease
from dualpace.scheduling.pacing import Spread
from dualpace.scheduling.placement import placement_from_text
from dualpace.tracing import open_tracing

log = logging.getLogger("dualpace.gpu_engine")


def main() -> int:
    """Run the service; returns its exit status."""
    return service_main("gpu-engine", GpuEngineSettings, _serve)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What has been loaded and sized before serving starts."""

    checkpoint: Checkpoint
    executor: Executor
    memory: MemoryPlan
    arena: Arena
    grammars: Grammars


def _serve(settings: GpuEngineSettings, stop: StopRequest) -> None:
    stop.install_signals()
    pin_process(settings.cores)
    torch.set_num_threads(settings.num_threads)
    run_dir = Path(settings.run_dir)
    require_space(run_dir, settings.arena_mib << 20)  # before the weights take their time
    checkpoint = open_checkpoint(Path(settings.model))
    executor = _executor(settings, checkpoint, stop)
    memory = plan_memory(settings, checkpoint.config, executor.dtype, executor.device.free_bytes())
    log.info("%s", memory)
    arena = Arena.create(
        run_dir,
        memory.arena,
        checkpoint.fingerprint,
        join=True,
        timeout_s=settings.arena_timeout_s,
        progress=log_progress(log, "preparing the arena", stop.check),
        check=stop.check,
    )
    grammars = Grammars(vocabulary_of(checkpoint))
    node = _Node(
        checkpoint=checkpoint,
        executor=executor,
        memory=memory,
        arena=arena,
        grammars=grammars,
    )
    try:
        how = "joined, with what the cpu-engine has in it" if arena.joined else "new"
        log.info("arena: %s; %d MiB in huge pages", how, arena.huge_page_bytes() >> 20)
        _run(settings, node, stop)
    finally:
        grammars.close()
        arena.close()
    log.info("gpu-engine stops: %s", stop.reason)


def _run(settings: GpuEngineSettings, node: _Node, stop: StopRequest) -> None:
    vocab_size = node.checkpoint.config.vocab_size
    max_model_len = node.memory.max_model_len
    run_dir = Path(settings.run_dir)
    host_pool = arena_pool(node.arena)
    node.executor.device.pin(host_pool.tensor)
    limits = GpuLimits(
        num_blocks=node.memory.device_blocks,
        block_size=settings.block_size,
        max_running=settings.running_limit,
        token_budget=settings.iteration_tokens,
    )
    facts = EngineFacts(
        engine=Engine.GPU,
        model_fingerprint=node.checkpoint.fingerprint,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        max_request_bytes=node.memory.arena.request_bytes,
    )
    bell, lending = _lending(settings, node)
    inbox: Inbox[GpuInput] = Inbox(bell)
    stop.on_stop(inbox.wake)
    with open_tracing("gpu-engine") as tracing, io_thread() as io:
        settle_pins()
        gateways = EngineServer(io, facts, inbox.put)
        host = HandoffClient(
            io,
            run_dir / CPU_SOCKET,
            node.arena.generation,
            inbox.put,
            incarnation=facts.incarnation,
        )

        def at_boundary() -> None:
            engine.between_stages()
            if lending is not None:
                lending.at_boundary()

        engine = GpuEngine(
            scheduler=GpuScheduler(limits, placement_from_text(settings.placement), Spread()),
            runner=_runner(settings, node, host_pool, at_boundary),
            lender=lending,
            lockstep=_lockstep(settings, node.arena),
            iterations=open_iteration_log(settings.iteration_log),
            tracer=None if tracing is None else StageTracer(tracing, SystemClock()),
            arena=node.arena,
            inbox=inbox,
            gateways=gateways,
            host=host,
            grammars=node.grammars,
            clock=SystemClock(),
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        )
        io.spawn(host.run())
        with serve_socket(io, run_dir / GPU_SOCKET, (engine_handler(gateways.session),)):
            log.info("ready: device %s, placement %s", settings.device, settings.placement)
            while not stop.requested:
                if not engine.step():
                    inbox.wait(STATUS_INTERVAL_S)
    node.executor.device.unpin(host_pool.tensor)


def _lockstep(settings: GpuEngineSettings, arena: Arena) -> Lockstep | None:
    if not settings.lockstep:
        return None
    log.warning("lockstep: this engine keeps step with the cpu-engine")
    return Lockstep(Path(settings.run_dir), Engine.GPU, arena.heartbeat(Engine.CPU))


def _lending(settings: GpuEngineSettings, node: _Node) -> tuple[Bell | None, Lending | None]:
    """Return the bell that the host rings, and what serves it then; None where assist is off."""
    if not node.memory.arena.assist_rows:
        return None, None
    region = AssistRegion(node.arena)
    bell = region.bell(Engine.GPU, spin_s=spin_s_for(settings.num_threads))
    channels = region.channels(bell)
    assist = DenseAssist(
        stages=node.executor.stages(node.arena, channels, node.grammars),
        device=node.executor.device,
        channels=channels,
        lease=AssistLease(share=settings.assist_share),
        clock=SystemClock(),
    )
    offer = OfferKeeper(
        region, share=settings.assist_share, num_layers=node.checkpoint.config.num_layers
    )
    return bell, Lending(assist, offer)


def _runner(
    settings: GpuEngineSettings,
    node: _Node,
    host_pool: KvPool,
    at_boundary: Callable[[], None],
) -> Runner:
    executor = node.executor
    try:
        device_pool = KvPool.allocate(
            node.checkpoint.config,
            node.memory.device_blocks,
            settings.block_size,
            dtype=executor.dtype,
            device=executor.device.torch_device,
        )
    except RuntimeError as error:  # torch's word for no memory
        raise CapacityError(
            f"device_kv_mib: no memory for {node.memory.device_blocks} KV blocks: {error}"
        ) from None
    pools = Pools(
        device=device_pool,
        host=host_pool,
        max_running=settings.running_limit,
        max_blocks_per_sequence=node.memory.arena.max_blocks_per_sequence,
    )
    return executor.runner(pools, node.grammars, at_boundary)


def _executor(settings: GpuEngineSettings, checkpoint: Checkpoint, stop: StopRequest) -> Executor:
    """Load the model on its device, or look up the times of an emulated one."""
    dtype = _dtype(settings, checkpoint)
    if settings.is_emulated:
        costs = emulated_costs(settings.device, checkpoint.config)
        log.warning("the device is emulated: iterations are waits, and text is nonsense")
        return EmulatedExecutor(CpuDevice(), dtype, checkpoint.config, costs)
    device = _device(settings)
    # Weights first: on CUDA the KV pool takes what they leave.
    decoder = load_decoder(
        checkpoint,
        dtype=dtype,
        device=device.torch_device,
        progress=log_progress(log, "loading weights", stop.check),
        max_positions=longest_sequence(settings, checkpoint.config),
    )
    return TorchExecutor(device, decoder, _attention(settings))


def _device(settings: GpuEngineSettings) -> Device:
    if not settings.on_cuda:
        return CpuDevice()
    if not torch.cuda.is_available():
        raise SettingsError(f"device: {settings.device} wanted, but torch finds no CUDA device")
    _, _, index = settings.device.partition(":")
    return CudaDevice(int(index or 0), settings.gpu_memory_fraction)


def _dtype(settings: GpuEngineSettings, checkpoint: Checkpoint) -> torch.dtype:
    name = settings.dtype
    if name == "auto":
        name = checkpoint.config.weights_dtype if settings.on_cuda else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _attention(settings: GpuEngineSettings) -> PagedAttention:
    if settings.on_cuda:
        return TorchPagedAttention()
    return host_attention(settings.num_threads)


if __name__ == "__main__":
    sys.exit(main())
