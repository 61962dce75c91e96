"""Counter-based sampling: the next token, independent of batch, engine and handoffs (torch)."""

from dualpace.sampling.noise import uniform
from dualpace.sampling.sampler import LogitsError, SampledToken, sample

__all__ = ["LogitsError", "SampledToken", "sample", "uniform"]
