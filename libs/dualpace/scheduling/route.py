"""The ways to run a host batch."""

import enum


class Route(enum.Enum):
    """Which dense stages run on the GPU. Attention and the KV cache always stay on the host."""

    HOST = enum.auto()
    """None."""
    FEED_FORWARD = enum.auto()
    """`post_attention`; Q, K and V are projected on the CPU."""
    ASSIST = enum.auto()
    """All of them."""
