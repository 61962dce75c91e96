"""What a node can do: the times of each stage on both engines, as measured or estimated.

Values only. A profile is written by whoever measured, read by the cost model; `profile_json` turns
it into a document and back. Times are milliseconds; stage times are those of one layer. It knows
nothing of requests or schedules.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dualpace.scheduling.curves import Curve, Grid

FORMAT = "dualpace-profile/1"


class Origin(enum.Enum):
    """How the numbers came about; printed beside every result made with them."""

    MEASURED = "measured"
    ROOFLINE = "roofline"


class Source(enum.Enum):
    """How one part's numbers came about."""

    MEASURED = "measured"
    STAND_IN = "measured on cpu"
    """With the CPU in the role of the device."""
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Of each part of a profile."""

    gpu: Source
    host: Source
    transfers: Source
    assist: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the cost model has to know of a model."""

    name: str
    fingerprint: str
    """Empty: any model of this shape."""
    num_layers: int
    kv_bytes_per_token: int
    """All layers together."""
    attention_input_bytes: int
    """Q, K and V of one row and layer: what assist sends to the host."""
    attention_output_bytes: int
    """Attention's result of one row and layer: what the host sends back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """One engine. Dense stages against rows; decode attention against rows and KV tokens."""

    pre_attention: Curve
    """Norm, QKV, RoPE."""
    post_attention: Curve
    """O, residual, norm, FFN, residual."""
    head: Curve
    """Final norm, LM head and sampling: once an iteration, over the sampled rows."""
    decode_attention: Grid
    step_overhead_ms: float
    """Scheduling and bookkeeping of one iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number derived from the tables, and why it is what it is."""

    name: str
    value: float
    unit: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One node with one model."""

    origin: Origin
    gpu_name: str
    host_name: str
    hardware_fingerprint: str
    """Empty: not tied to one machine."""
    model: ModelShape
    gpu: StageTimes
    gpu_prefill_attention: Curve
    """Causal attention of a prompt's chunk, against the query-key pairs that it looks at."""
    host: StageTimes
    to_host: Curve
    """Copy from device to host, against bytes."""
    to_device: Curve
    assist_sync_ms: float
    """Doorbell and stream synchronisation of one direction of an assist call."""
    sources: Sources
    thresholds: tuple[Threshold, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """For people and tools, as JSON: where, when, how often and how steadily things were measured.
    Nobody decides by it."""
