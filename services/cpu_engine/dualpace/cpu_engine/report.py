"""What the cpu-engine really runs on: as lines of its log and as numbers for metrics."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    isa: str
    """Instruction set of the kernels; `none` without them."""
    native_step: bool
    """Whether an iteration is one native call."""
    packed_bytes: Mapping[str, int]
    """Bytes of packed weights by format; empty: weights are torch's."""
    huge_page_bytes: int
    """How many of them lie on huge pages."""
    num_threads: int
    affinities: tuple[tuple[int, ...], ...]
    """For each compute thread the processors that it may run on, read back; empty: not known."""
    pinning: str
    """Why threads are tied to processors, or not."""

    def lines(self) -> tuple[str, ...]:
        """Return what to log."""
        packed = ", ".join(f"{n / _MIB:.0f} MiB {name}" for name, n in self.packed_bytes.items())
        total = sum(self.packed_bytes.values())
        huge = f"; {self.huge_page_bytes / total:.0%} on huge pages" if total else ""
        cpus = "; ".join(_cpu_text(cpus) for cpus in self.affinities)
        form = "one native call an iteration" if self.native_step else "stage by stage"
        return (
            f"kernels: {self.isa}; {form}",
            f"weights: {packed or 'in torch'}{huge}",
            f"compute threads: {self.num_threads} on CPUs {cpus or 'unknown'} ({self.pinning})",
        )

    def gauges(self) -> dict[str, float]:
        """Return numbers for metrics."""
        return {
            f"isa_{self.isa}": 1.0,
            "native_step": float(self.native_step),
            "compute_threads": self.num_threads,
            "pinned_threads": sum(len(cpus) == 1 for cpus in self.affinities),
            "packed_huge_page_bytes": self.huge_page_bytes,
            **{f"packed_{name}_bytes": size for name, size in self.packed_bytes.items()},
        }


def host_report(decoder: Decoder, step: HostStep, cores: CorePlan) -> HostReport:
    """Look at what was made. Call it in the thread that computes, after its threads were tied."""
    try:
        from dualpace.kernels import (  # noqa: PLC0415
            capabilities,
            packed_memory,
            thread_affinities,
        )
    except ImportError:
        isa, huge = "none", 0
        affinities: list[list[int]] = []
    else:
        isa, huge = capabilities().isa, packed_memory()[1]
        affinities = thread_affinities(cores.num_threads)
    return HostReport(
        isa=isa,
        native_step=not isinstance(step, StagedStep),
        packed_bytes=packed_bytes(decoder),
        huge_page_bytes=huge,
        num_threads=cores.num_threads,
        affinities=tuple(tuple(cpus) for cpus in affinities),
        pinning=cores.reason,
    )


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
