"""What the cpu-engine really runs on: as lines of its log and as numbers for metrics."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dualpace.cpu_engine.cores import CorePlan
from dualpace.models.decoder import Decoder
from dualpace.models.feed_forward import GatedMlp, MixtureOfExperts
from dualpace.models.host_step import HostStep, StagedStep
from dualpace.models.linear import Linear

log = logging.getLogger(__name__)

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """A snapshot of the start."""

    backend: str
    """What multiplies and attends, see HostBackend."""
    isa: str
    """Instruction set of the kernels; `none` without them."""
    tile_refusal: str
    """Why tiles that the processor has are not used; empty: no such case."""
    tile_work: tuple[str, ...]
    """What runs on tiles."""
    native_step: bool
    """Whether an iteration is one native call."""
    rows_in_turns: int
    """From how many rows on two groups of a batch take turns in the layers; 0: never."""
    packed_bytes: Mapping[str, int]
    """Bytes of packed weights by format; empty: weights are torch's."""
    head_screen_bytes: int
    """Size of the output head's int16 form, by which greedy tokens are found; 0: there is none."""
    huge_page_bytes: int
    """How many of those and of these lie on huge pages."""

    num_threads: int
    affinities: tuple[tuple[int, ...], ...]
    """For each compute thread the processors that it may run on, read back; empty: not known."""
    pinning: str
    """Why threads are tied to processors, or not."""

    def lines(self) -> tuple[str, ...]:
        """Return what to log."""
        screen = self.head_screen_bytes
        screened = f"; greedy tokens by {screen / _MIB:.0f} MiB int16" if screen else ""
        packed = ", ".join(f"{n / _MIB:.0f} MiB {name}" for name, n in self.packed_bytes.items())
        total = sum(self.packed_bytes.values()) + self.head_screen_bytes
        huge = f"; {self.huge_page_bytes / total:.0%} on huge pages" if total else ""
        cpus = "; ".join(_cpu_text(cpus) for cpus in self.affinities)
        tiles = f"; on tiles: {', '.join(self.tile_work)}" if self.tile_work else ""
        kernels = self.isa if self.backend == "native" else self.backend
        form = "one native call an iteration" if self.native_step else "stage by stage"
        turns = (
            f"; two groups in turns from {self.rows_in_turns} rows on" if self.rows_in_turns else ""
        )
        return (
            f"kernels: {kernels}; {form}{turns}{tiles}",
            f"weights: {packed or 'in torch'}{huge}{screened}",
            f"compute threads: {self.num_threads} on CPUs {cpus or 'unknown'} ({self.pinning})",
        )

    def gauges(self) -> dict[str, float]:
        """Return numbers for metrics."""
        return {
            f"isa_{self.isa}": 1.0,
            f"backend_{self.backend}": 1.0,
            "native_step": float(self.native_step),
            "rows_in_turns": self.rows_in_turns,
            "tile_products": float(any(work.startswith("products") for work in self.tile_work)),
            "tile_attention": float(any(work.startswith("attention") for work in self.tile_work)),
            "tiles_refused": float(bool(self.tile_refusal)),
            "compute_threads": self.num_threads,
            "pinned_threads": sum(len(cpus) == 1 for cpus in self.affinities),
            "packed_huge_page_bytes": self.huge_page_bytes,
            "head_screen_bytes": self.head_screen_bytes,
            **{f"packed_{name}_bytes": size for name, size in self.packed_bytes.items()},
        }


def host_report(
    decoder: Decoder, step: HostStep, cores: CorePlan, backend: str = "native"
) -> HostReport:
    """Look at what was made. Call it in the thread that computes, after its threads were tied."""
    try:
        from dualpace.kernels import (  # noqa: PLC0415
            capabilities,
            packed_memory,
            thread_affinities,
        )
    except ImportError:
        isa, refusal, huge = "none", "", 0
        affinities: list[list[int]] = []
    else:
        native, huge = capabilities(), packed_memory()[1]
        isa, refusal = native.isa, native.tile_refusal
        if refusal:
            log.warning("the processor has tiles (AMX), but %s: %s is used", refusal, isa)
        affinities = thread_affinities(cores.num_threads)
    packed = packed_bytes(decoder)
    return HostReport(
        backend=backend,
        isa=isa,
        tile_refusal=refusal,
        tile_work=tile_work(isa, decoder, packed),
        native_step=not isinstance(step, StagedStep),
        rows_in_turns=getattr(step, "rows_in_turns", 0),
        packed_bytes=packed,
        head_screen_bytes=getattr(step, "screen_bytes", 0),
        huge_page_bytes=huge,
        num_threads=cores.num_threads,
        affinities=tuple(tuple(cpus) for cpus in affinities),
        pinning=cores.reason,
    )


def tile_work(isa: str, decoder: Decoder, packed: Mapping[str, int]) -> tuple[str, ...]:
    """Return what runs on tiles, in words; `packed` are the bytes of packed weights by format."""
    if isa != "amxbf16" or decoder.dtype is not torch.bfloat16:
        return ()
    from dualpace.kernels import LEAST_TILE_HEADS, LEAST_TILE_ROWS  # noqa: PLC0415

    work = []
    if packed.get("bfloat16"):
        work.append(f"products of {LEAST_TILE_ROWS} rows or more")
    if decoder.config.num_heads // decoder.config.num_kv_heads >= LEAST_TILE_HEADS:
        work.append("attention where KV is bfloat16")
    return tuple(work)


def pin_compute(cpus: Sequence[int]) -> None:
    """Tie compute thread i to processor cpus[i]; without the kernels, say that it was not done."""
    try:
        from dualpace.kernels import pin_threads  # noqa: PLC0415
    except ImportError as error:
        log.warning("native kernels are not built (%s): compute threads are not tied", error)
        return
    pin_threads(cpus)


def packed_bytes(decoder: Decoder) -> dict[str, int]:
    """Return the bytes of the model's packed weights by format."""
    sizes: dict[str, int] = {}
    for linear in _linears(decoder):
        packed = getattr(linear, "packed", None)
        if packed is not None:
            sizes[packed.format] = sizes.get(packed.format, 0) + packed.num_bytes
    return sizes


def _linears(decoder: Decoder) -> list[Linear]:
    linears = [decoder.ends.output_head]
    for layer in decoder.layers:
        linears += [layer.qkv, layer.output]
        part = layer.feed_forward
        mlps = part.experts if isinstance(part, MixtureOfExperts) else [part]
        for mlp in mlps:
            if isinstance(mlp, GatedMlp):
                linears += [mlp.gate_up, mlp.down]
    return linears


def _cpu_text(cpus: tuple[int, ...]) -> str:
    return ",".join(str(cpu) for cpu in cpus) if len(cpus) <= 4 else f"any of {len(cpus)}"
