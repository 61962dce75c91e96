"""One uniform number for each (seed, position)."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dualpace.sampling.noise import mix, uniform

SEEDS = st.integers(0, 2**64 - 1)


def splitmix64(state: int) -> tuple[int, int]:
    """The generator as published: advance, then finalise."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return state, z ^ (z >> 31)


def test_mix_equals_the_published_generator() -> None:
    # Outputs for seed 1234567 as listed on Rosetta Code, "Pseudo-random numbers/Splitmix64".
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    state, outputs = 1234567, []
    for _ in published:
        state, output = splitmix64(state)
        outputs.append(output)
        assert mix(state) == output
    assert outputs == published


@given(SEEDS, st.integers(0, 2**31))
def test_uniform_lies_in_the_half_open_unit_interval(seed: int, position: int) -> None:
    u = uniform(seed, position)
    assert 0.0 <= u < 1.0
    assert (u * 2**53).is_integer()


@given(SEEDS, st.integers(0, 1000))
def test_positions_of_a_seed_walk_one_splitmix_stream(seed: int, position: int) -> None:
    state = mix(seed)
    for _ in range(position):
        state, _ = splitmix64(state)
    assert uniform(seed, position) == (splitmix64(state)[1] >> 11) / 2**53


def test_uniform_is_uniform_over_seeds_and_over_positions() -> None:
    for draws in (
        [uniform(seed, 7) for seed in range(20_000)],
        [uniform(7, position) for position in range(20_000)],
    ):
        counts = Counter(int(u * 64) for u in draws)
        expected = len(draws) / 64
        chi_square = sum((counts[i] - expected) ** 2 / expected for i in range(64))
        # 63 degrees of freedom: mean 63, standard deviation 11.2; six of them.
        assert chi_square < 63 + 6 * math.sqrt(2 * 63)


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    n = 20_000
    pairs = {
        "seed": [(uniform(s, 3), uniform(s + 1, 3)) for s in range(n)],
        "position": [(uniform(3, p), uniform(3, p + 1)) for p in range(n)],
        "both": [(uniform(s, 5), uniform(s + 1, 4)) for s in range(n)],
    }
    for name, values in pairs.items():
        correlation = sum((a - 0.5) * (b - 0.5) for a, b in values) / n * 12
        assert abs(correlation) < 6 / math.sqrt(n), name
