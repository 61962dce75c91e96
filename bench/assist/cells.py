"""Host iterations of any batch and context: the cpu-engine's own steps, beside an emulated device.

Both ways of running an iteration are real: every stage here, or the dense ones in another process
that waits as long as a profile says. There is no scheduler and no client: sequences stand in the
arena as if they had just been committed.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from decoupling.profiles import running_on

from dualpace.checkpoint import Checkpoint, fetch_demo_model, open_checkpoint
from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.core.blocks import blocks_for
from dualpace.core.clock import SystemClock
from dualpace.core.request import Engine, Request, SamplingParams
from dualpace.cpu_engine.assist import AssistedStep
from dualpace.cpu_engine.borrowing import Borrowing
from dualpace.cpu_engine.runner import HostRunner
from dualpace.grammar import Grammars, vocabulary_of
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_region import AssistRegion
from dualpace.ipc.layout import ArenaGeometry, KvDtype
from dualpace.models.arena_pool import arena_pool
from dualpace.models.host_attention import host_attention
from dualpace.models.host_linear import host_linear
from dualpace.models.host_step import host_step
from dualpace.models.loader import load_decoder
from dualpace.pinning import NodePlan
from dualpace.scheduling.host_policy import HostShape
from dualpace.scheduling.live_policy import LivePolicy
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.plan import HostPlan, HostRow
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """A batch in which every sequence has as many tokens."""

    batch: int
    context: int

    @property
    def kv_tokens(self) -> list[int]:
        """Of each row."""
        return [self.context] * self.batch


class CellNode:
    """A host that runs cells; make it with `cell_node`."""

    def __init__(self, checkpoint: Checkpoint, arena: Arena, threads: int) -> None:
        self._arena = arena
        decoder = load_decoder(
            checkpoint,
            dtype=torch.float32,
            device=torch.device("cpu"),
            linear=host_linear(threads, weights="auto"),
        )
        attention = host_attention(threads)
        pool = arena_pool(arena)
        pool.tensor.fill_(0.5)  # pages that were never written are one page
        step = host_step(decoder, pool, arena.block_tables, attention, num_threads=threads)
        self.assisted = AssistedStep(
            decoder=decoder,
            arena=arena,
            attention=attention,
            device_bell=AssistRegion(arena).bell(Engine.GPU),
            clock=SystemClock(),
            deadline_s=2.0,
        )
        self._grammars = Grammars(vocabulary_of(checkpoint))
        self._policy = _Heard()
        self._runner = HostRunner(
            step, arena, self._grammars, Borrowing(self.assisted, self._policy)
        )
        self._requests = [_request(slot) for slot in range(arena.geometry.num_slots)]
        for slot, request in enumerate(self._requests):
            arena.sequences.open(slot, request, 1, None)

    def close(self) -> None:
        """End the compiler's thread."""
        self._grammars.close()

    def run(self, cell: Cell, shape: HostShape) -> float:
        """Run one iteration; returns seconds."""
        rows = tuple(
            HostRow(request=self._requests[slot], slot=slot, position=cell.context - 1, token_id=7)
            for slot in range(cell.batch)
        )
        self._enter(cell)
        plan = HostPlan(rows, (), shape.micro_batches, shape.route)
        begin_s = time.perf_counter()
        self._runner.execute(plan)
        return time.perf_counter() - begin_s

    def step(self, policy: LivePolicy, cell: Cell) -> None:
        """Run one iteration as a policy decides, and tell it what came of it."""
        policy.terms = self.assisted.terms(device_present=True)
        shape = policy.shape(cell.kv_tokens)
        policy.observe(shape, self.run(cell, shape))

    def _enter(self, cell: Cell) -> None:
        """Give every row blocks of its own, one more than it needs for the token that comes."""
        width = blocks_for(cell.context + 1, _BLOCK)
        blocks = torch.arange(cell.batch * width, dtype=torch.int32).view(cell.batch, width)
        self._arena.block_tables[: cell.batch, :width] = blocks.numpy()


class _Heard:
    """Takes terms that nobody asks for here."""

    terms: AssistTerms = CLOSED


def forced(cell: Cell, route: Route, costs: RouteCosts) -> HostShape:
    """Return the shape in which a policy with these costs would run a cell on a route."""
    forecast = costs.forecast(route, cell.batch, sum(cell.kv_tokens), AssistTerms(open=True))
    return HostShape(balanced_split(cell.kv_tokens, forecast.micro_batches), route)


def _request(slot: int) -> Request:
    return Request(
        request_id=slot + 1,
        gateway_id=1,
        prompt_tokens=1,
        max_tokens=1 << 20,
        sampling=SamplingParams(temperature=0.0),
        arrival_s=0.0,
    )


@contextmanager
def cell_node(
    run_dir: Path, profile: Path, *, most: int, kv_tokens: int, plan: NodePlan
) -> Iterator[CellNode]:
    """Run the host and the device for cells of up to `most` rows and `kv_tokens` KV tokens.

    Each on the cores of the plan.
    """
    checkpoint = open_checkpoint(fetch_demo_model())
    config = checkpoint.config
    width = blocks_for(kv_tokens, _BLOCK) + 1
    geometry = ArenaGeometry(
        num_layers=config.num_layers,
        num_blocks=width + most,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        block_size=_BLOCK,
        head_dim=config.head_dim,
        kv_dtype=KvDtype.FLOAT32,
        num_slots=most,
        max_blocks_per_sequence=width,
        request_bytes=256,
        assist_rows=most,
    )
    arena = Arena.create(run_dir, geometry, checkpoint.fingerprint)
    command = [sys.executable, "-m", "assist.emulated_device", str(run_dir), str(profile)]
    with running_on(plan.gpu_engine.compute_cpus):
        device = subprocess.Popen(  # noqa: S603 - our own command, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    assert device.stdin is not None
    assert device.stdout is not None
    try:
        assert device.stdout.readline() == b"ready\n", "the device did not start"
        cpus = plan.ranks[0].compute_cpus
        torch.set_num_threads(len(cpus))
        with running_on(cpus):
            node = CellNode(checkpoint, arena, len(cpus))
            yield node
            node.close()
    finally:
        device.stdin.close()
        device.wait(30)
        device.stdout.close()
        arena.close()
