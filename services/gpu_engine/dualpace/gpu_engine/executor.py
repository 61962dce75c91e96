"""Who computes: torch on a device, or the waits of an emulated one. Built once, at start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dualpace.checkpoint import ModelConfig
from dualpace.gpu_engine.dense_assist import AssistStages
from dualpace.gpu_engine.device import Device
from dualpace.gpu_engine.emulated import EmulatedRunner, EmulatedStages
from dualpace.gpu_engine.engine import Runner
from dualpace.gpu_engine.runner import GpuRunner
from dualpace.gpu_engine.torch_stages import TorchStages
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_channel import AssistChannel
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.kv_pool import KvPool
from dualpace.sampling.slot_state import GrammarSource
from dualpace.scheduling.cost import GpuCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """KV of both sides, and the sizes that go with it."""

    device: KvPool
    host: KvPool
    max_running: int
    max_blocks_per_sequence: int


class Executor(Protocol):
    """Makes what computes."""

    @property
    def device(self) -> Device:
        """Where."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and KV."""
        ...

    def runner(
        self, pools: Pools, grammars: GrammarSource, at_boundary: Callable[[], None] | None
    ) -> Runner:
        """Return what executes plans."""
        ...

    def stages(
        self, arena: Arena, channels: Sequence[AssistChannel], grammars: GrammarSource
    ) -> AssistStages:
        """Return what computes lent stages."""
        ...


@dataclass(frozen=True, slots=True)
class TorchExecutor:
    """A loaded model on a device."""

    device: Device
    decoder: Decoder
    attention: PagedAttention

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return self.decoder.dtype

    def runner(
        self, pools: Pools, grammars: GrammarSource, at_boundary: Callable[[], None] | None
    ) -> Runner:
        """Return what executes plans."""
        return GpuRunner(
            decoder=self.decoder,
            device=self.device,
            device_pool=pools.device,
            host_pool=pools.host,
            attention=self.attention,
            grammars=grammars,
            max_running=pools.max_running,
            max_blocks_per_sequence=pools.max_blocks_per_sequence,
            at_boundary=at_boundary,
        )

    def stages(
        self, arena: Arena, channels: Sequence[AssistChannel], grammars: GrammarSource
    ) -> AssistStages:
        """Return what computes lent stages."""
        return TorchStages(decoder=self.decoder, arena=arena, channels=channels, grammars=grammars)


@dataclass(frozen=True, slots=True)
class EmulatedExecutor:
    """No model at all: its config, and how long things take."""

    device: Device
    dtype: torch.dtype
    config: ModelConfig
    costs: GpuCosts

    def runner(
        self, pools: Pools, grammars: GrammarSource, at_boundary: Callable[[], None] | None
    ) -> Runner:
        """Return what executes plans."""
        del grammars
        return EmulatedRunner(
            costs=self.costs,
            device=self.device,
            device_pool=pools.device,
            host_pool=pools.host,
            vocab_size=self.config.vocab_size,
            at_boundary=at_boundary,
        )

    def stages(
        self, arena: Arena, channels: Sequence[AssistChannel], grammars: GrammarSource
    ) -> AssistStages:
        """Return what computes lent stages."""
        del grammars
        return EmulatedStages(
            costs=self.costs,
            num_layers=self.config.num_layers,
            arena=arena,
            channels=channels,
            vocab_size=self.config.vocab_size,
        )
