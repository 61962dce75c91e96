"""Counter-based noise: one uniform number for each (seed, position), whoever asks, and when."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: the increment of SplitMix64."""


def uniform(seed: int, position: int) -> float:
    """Return u in [0, 1), a multiple of 2^-53, from an unsigned 64-bit seed and a position >= 0.

    SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"):
    `position` is the counter of a stream whose start is the mixed seed, so that neighbouring seeds
    do not give shifted copies of one stream.
    """
    state = (mix(seed) + (position + 1) * _GOLDEN) & _MASK
    return (mix(state) >> 11) * 2.0**-53


def mix(z: int) -> int:
    """Return SplitMix64's finaliser of a 64-bit number.

    A bijection in which each input bit moves each output bit. Constants of Stafford's variant 13
    ("Better bit mixing", 2011), which SplitMix64 uses.
    """
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
