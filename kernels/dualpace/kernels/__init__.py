"""Native CPU kernels, dispatched by instruction set at run time."""

from dualpace.kernels._openmp import load_openmp_runtime

load_openmp_runtime()  # before anything that imports the native module

from dualpace.kernels.attention import (  # noqa: E402
    LEAST_TILE_HEADS,
    LEAST_TILE_ROWS,
    HostArray,
    attention_multiply_adds,
    paged_attention_decode,
)
from dualpace.kernels.capabilities import Capabilities, capabilities  # noqa: E402
from dualpace.kernels.decoder import (  # noqa: E402
    DecoderSizes,
    HostDecoder,
    HostLayer,
    StageSeconds,
    StepRows,
)
from dualpace.kernels.doorbell import load, publish, ring, wait_changed  # noqa: E402
from dualpace.kernels.linear import (  # noqa: E402
    WEIGHT_FORMATS,
    PackedLinear,
    holds_exactly,
    multiply_adds,
    narrow_arithmetic,
    packed_memory,
)
from dualpace.kernels.memory import huge_pages, stream_read  # noqa: E402
from dualpace.kernels.pinning import pin_threads, thread_affinities  # noqa: E402

__all__ = [
    "LEAST_TILE_HEADS",
    "LEAST_TILE_ROWS",
    "WEIGHT_FORMATS",
    "Capabilities",
    "DecoderSizes",
    "HostArray",
    "HostDecoder",
    "HostLayer",
    "PackedLinear",
    "StageSeconds",
    "StepRows",
    "attention_multiply_adds",
    "capabilities",
    "holds_exactly",
    "huge_pages",
    "load",
    "multiply_adds",
    "narrow_arithmetic",
    "packed_memory",
    "paged_attention_decode",
    "pin_threads",
    "publish",
    "ring",
    "stream_read",
    "thread_affinities",
    "wait_changed",
]
