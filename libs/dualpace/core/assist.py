"""What the gpu-engine tells the host's router about lending its dense stages."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AssistTerms:
    """What the gpu-engine currently offers, and how its own iterations look meanwhile."""

    open: bool
    price: float = 0.0
    """Tokens that the device's own iterations bring per second; 0 when it is idle."""
    share: float = 1.0
    """Of the GPU's time, how much may go to assist."""
    stage_s: float = 0.0
    """Between two stage boundaries of the GPU's own batch: half of it is the mean wait."""
    sweep_s: float = 0.0
    """One iteration of the GPU: how often it passes each boundary. 0: there is no batch."""
    rows: int = 0
    """Token rows of the GPU's own batch."""


CLOSED = AssistTerms(open=False)
