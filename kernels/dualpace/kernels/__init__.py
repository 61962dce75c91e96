"""Native CPU kernels, dispatched by instruction set at run time."""

from dualpace.kernels._openmp import load_openmp_runtime

load_openmp_runtime()  # before anything that imports the native module

from dualpace.kernels.attention import HostArray, paged_attention_decode  # noqa: E402
from dualpace.kernels.capabilities import Capabilities, capabilities  # noqa: E402
from dualpace.kernels.doorbell import load, publish, ring, wait_changed  # noqa: E402
from dualpace.kernels.memory import stream_read  # noqa: E402

__all__ = [
    "Capabilities",
    "HostArray",
    "capabilities",
    "load",
    "paged_attention_decode",
    "publish",
    "ring",
    "stream_read",
    "wait_changed",
]
