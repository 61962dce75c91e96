"""The systems that are compared, by name, and how each is put together.

`dualpace` and its variants run the very schedulers that the engines run. `vllm` has as many device
blocks as the others, `vllm-defaults` as many as it would find itself. `neo` believes its published
launch cost, `neo-measured` a measured one; both pay the measured one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dualpace.core.errors import SettingsError
from dualpace.lab.gpu_clock import GpuClock
from dualpace.lab.host_clock import HostClock
from dualpace.lab.lockstep import Lockstep
from dualpace.lab.node import Node, TwoClocks
from dualpace.lab.recorder import Recorder
from dualpace.lab.timeline import Timeline
from dualpace.scheduling.baselines.gpu_only import GpuOnlyScheduler
from dualpace.scheduling.baselines.neo import NeoConfig, NeoPredictor, NeoScheduler
from dualpace.scheduling.baselines.neo.config import SHIPPED_LAUNCH_MS
from dualpace.scheduling.baselines.neo.predictor import tables_from
from dualpace.scheduling.cost import NodeCosts, chunk_pairs
from dualpace.scheduling.cpu import HostLimits, HostScheduler
from dualpace.scheduling.gpu import GpuScheduler
from dualpace.scheduling.gpu_state import GpuLimits
from dualpace.scheduling.live_policy import LivePolicy
from dualpace.scheduling.pacing import FullSpeed, Spread
from dualpace.scheduling.placement import Auto
from dualpace.scheduling.presets import MODELS, default_device_blocks, named_gpu, preset_profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts

BLOCK_SIZE = 16
MEASURED_LAUNCH_MS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A node and its memory."""

    gpu: str = "rtx-4090"
    host: str = "xeon-4510-120"
    model: str = "llama-3.1-8b"
    device_blocks: int = 1650
    host_blocks: int = 30720

    def costs(self, *, loss_ms: float = 0.0) -> NodeCosts:
        """Return the cost model. Raises SettingsError.

        `loss_ms`: what an implementation adds to every iteration, not hidden by the GPU's work:
        Python, launches one by one, sampling, bookkeeping.
        """
        costs = NodeCosts(preset_profile(self.gpu, self.host, self.model))
        costs.gpu.step_overhead_s += loss_ms / 1e3
        return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parts of our policy that can be switched off, one by one, and its targets."""

    itl_target_s: float | None = 0.4
    assist: bool = True
    assist_share: float = 0.35
    riding: bool = True
    micro_batches: int = 2
    routes: tuple[Route, ...] = (Route.ASSIST,)
    pacing: bool = True
    two_way: bool = True
    headroom: float = 0.2
    low: float = 0.1
    crowd: int = 4
    crowd_headroom: float = 0.05
    token_budget: int = 2048
    prompt_answers: bool = True
    busy_tokens: int = 512


class OneWay(Auto):
    """Device first, then the host for good."""

    def recall(self, away: object, view: object) -> None:
        """Never."""
        del away, view


Build = Callable[[Timeline, Recorder, Hardware], Node]


def dualpace(options: Options) -> Build:
    """Return our two engines with these parts."""

    def build(timeline: Timeline, recorder: Recorder, hardware: Hardware) -> TwoClocks:
        costs = hardware.costs()
        limits = GpuLimits(
            num_blocks=hardware.device_blocks,
            block_size=BLOCK_SIZE,
            max_running=256,
            token_budget=options.token_budget,
            busy_tokens=options.busy_tokens,
        )
        placement = (Auto if options.two_way else OneWay)(
            headroom=options.headroom,
            low=options.low,
            crowd=options.crowd,
            crowd_headroom=options.crowd_headroom,
        )
        pacing = Spread() if options.pacing else FullSpeed()
        scheduler = GpuScheduler(limits, placement, pacing)
        gpu = GpuClock(timeline, costs, scheduler, recorder, assist_share=options.assist_share)
        routes = RouteCosts(costs, micro_batches=options.micro_batches, riding=options.riding)
        policy = LivePolicy(
            costs.profile,
            itl_target_s=options.itl_target_s,
            micro_batches=options.micro_batches,
            riding=options.riding,
            routes=options.routes,
        )
        host = HostClock(
            timeline,
            costs=routes,
            scheduler=HostScheduler(_host_limits(hardware), policy),
            policy=policy,
            recorder=recorder,
            gpu=gpu,
            assist=options.assist,
            prompt_answers=options.prompt_answers,
        )
        return TwoClocks(gpu, host)

    return build


def neo(believed_launch_ms: float, *, loss_ms: float = 0.0) -> Build:
    """Return NEO with this launch cost in its performance model."""

    def build(timeline: Timeline, recorder: Recorder, hardware: Hardware) -> Lockstep:
        costs = hardware.costs(loss_ms=loss_ms)
        longest = max(t.arrival.prompt_tokens for t in recorder.tracks.values())
        config = NeoConfig(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=hardware.device_blocks,
            num_cpu_blocks=hardware.host_blocks,
            max_batch_size=1024,
            # Its published default of 3,072 would hold up longer prompts for ever.
            max_tokens_in_batch=max(8192, longest),
            # One for each block, so that ids never run out: the original would stop with an error.
            max_seqs_in_block_table=hardware.device_blocks + hardware.host_blocks,
            num_layers=costs.gpu.num_layers,
            launch_ms=believed_launch_ms,
        )
        tables = tables_from(
            config,
            linr=lambda rows: 1e3 * costs.gpu.dense_layer_s(rows),
            pref=lambda length: 1e3 * costs.gpu.prefill_layer_s(chunk_pairs(0, length)),
            gdec=lambda tokens: 1e3 * costs.gpu.attention_layer_s(1, tokens),
            cdec=lambda rows, tokens: 1e3 * costs.host.attention_layer_s(rows, tokens),
        )
        scheduler = NeoScheduler(config, NeoPredictor(tables))
        return Lockstep(timeline, costs, scheduler, recorder, launch_ms=MEASURED_LAUNCH_MS)

    return build


def vllm(
    *,
    own_blocks: bool,
    token_budget: int = 2048,
    watermark: float = 0.0,
    loss_ms: float = 0.0,
) -> Build:
    """Return vLLM's rules on the GPU alone; its server's default budget, unless given."""

    def build(timeline: Timeline, recorder: Recorder, hardware: Hardware) -> TwoClocks:
        blocks = hardware.device_blocks
        if own_blocks:
            gpu, model = named_gpu(hardware.gpu), MODELS[hardware.model]
            blocks = default_device_blocks(gpu, model, BLOCK_SIZE)
        limits = GpuLimits(
            num_blocks=blocks, block_size=BLOCK_SIZE, max_running=256, token_budget=token_budget
        )
        scheduler = GpuOnlyScheduler(limits, watermark=watermark)
        costs = hardware.costs(loss_ms=loss_ms)
        return TwoClocks(GpuClock(timeline, costs, scheduler, recorder), None)

    return build


def _host_limits(hardware: Hardware) -> HostLimits:
    return HostLimits(
        num_blocks=hardware.host_blocks,
        block_size=BLOCK_SIZE,
        max_blocks_per_sequence=hardware.host_blocks,
        num_slots=1024,
        max_batch=1024,
    )


_ALL = Options()

PLAIN = replace(
    _ALL,
    pacing=False,
    riding=False,
    micro_batches=1,
    two_way=False,
    low=0.05,
    crowd_headroom=0.2,
)
"""Two clocks and nothing else: device first, then the host, which is bounded by its ITL target."""

SYSTEMS: dict[str, Build] = {
    "dualpace": dualpace(_ALL),
    "neo": neo(SHIPPED_LAUNCH_MS),
    "neo-measured": neo(MEASURED_LAUNCH_MS),
    "vllm": vllm(own_blocks=False),
    "vllm-defaults": vllm(own_blocks=True),
}

TUNED: dict[str, Build] = {
    "vllm-256": vllm(own_blocks=False, token_budget=256),
    "vllm-defaults-256": vllm(own_blocks=True, token_budget=256),
}
"""vLLM by a user who knows that small chunks pay where memory is short; not compared by default."""

THIRD_PARTY: dict[str, Build] = {
    "vllm-third-party": vllm(own_blocks=False, token_budget=26_400, watermark=0.01, loss_ms=12.0),
    "neo-third-party": neo(SHIPPED_LAUNCH_MS, loss_ms=9.0),
}
"""Both as a third party ran them (cilinmengye/NEO): vLLM 0.7.3 in eager mode, without asynchronous
output and in effect without chunks, and NEO's own engine. Losses are fitted to what it measured,
one number each, and of the size of one that can be told apart: its vLLM took 28.4 ms for a decode
step of 16 x 1,024 tokens, 9 ms more than weights and KV take to read. They check the baselines;
nothing is compared with them."""

VARIANTS: dict[str, Build] = {
    "plain two clocks": dualpace(PLAIN),
    "without assist": dualpace(replace(_ALL, assist=False)),
    "without paced prefills": dualpace(replace(_ALL, pacing=False)),
    "one micro-batch": dualpace(replace(_ALL, micro_batches=1)),
    "three micro-batches": dualpace(replace(_ALL, micro_batches=3)),
    "without riding": dualpace(replace(_ALL, riding=False)),
    "with assist for the FFN alone, too": dualpace(
        replace(_ALL, routes=(Route.ASSIST, Route.FEED_FORWARD))
    ),
    "without the way back": dualpace(replace(_ALL, two_way=False)),
    "same headroom in a crowd": dualpace(replace(_ALL, crowd_headroom=0.2)),
    "host answers between iterations": dualpace(replace(_ALL, prompt_answers=False)),
    "host for short answers, too": dualpace(replace(_ALL, busy_tokens=1 << 40)),
    "1 s between tokens": dualpace(replace(_ALL, itl_target_s=1.0)),
}
"""`dualpace` with one part changed, each."""


def system(name: str) -> Build:
    """Return a system or variant by name. Raises SettingsError that lists the systems."""
    for known in (SYSTEMS, TUNED, THIRD_PARTY, VARIANTS):
        if name in known:
            return known[name]
    raise SettingsError(f"system: {name!r} is not one of {', '.join((*SYSTEMS, *TUNED))}")
