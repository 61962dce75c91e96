"""The decoder in stages, its paged KV and its attention, for both engines (torch)."""

from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.models.kv_pool import KvPool
from dualpace.models.linear import Linear, LinearFactory, torch_linear
from dualpace.models.loader import load_decoder
from dualpace.models.torch_attention import TorchPagedAttention

__all__ = [
    "Decoder",
    "KvPool",
    "Linear",
    "LinearFactory",
    "PagedAttention",
    "TorchPagedAttention",
    "load_decoder",
    "torch_linear",
]
