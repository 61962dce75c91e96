"""Chooses the attention implementation for CPU tensors, and says which one it is."""

import logging

from dualpace.models.attention import PagedAttention
from dualpace.models.torch_attention import TorchPagedAttention

log = logging.getLogger(__name__)


def host_attention(num_threads: int) -> PagedAttention:
    """Return the native kernel where it is built, otherwise torch, with a warning."""
    try:
        from dualpace.kernels import capabilities  # noqa: PLC0415
        from dualpace.models.native_attention import NativePagedAttention  # noqa: PLC0415
    except ImportError as error:
        log.warning("native kernels are not built (%s): decode attention runs in torch", error)
        return TorchPagedAttention()
    chosen = capabilities()
    log.info("decode attention: native kernel for %s", chosen.isa)
    log.debug("%s", chosen)
    return NativePagedAttention(num_threads)
