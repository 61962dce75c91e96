"""Random numbers for ids and seeds that nobody needs to be unable to guess.

The system's own source costs a system call each time, and a request needs several.
"""

import random
import secrets

_random = random.Random(secrets.randbits(256))  # noqa: S311 - see above


def random_bits(count: int) -> int:
    """Return a number of so many bits, unlike that of any other process."""
    return _random.getrandbits(count)


def random_id() -> str:
    """Return 32 hexadecimal digits."""
    return f"{_random.getrandbits(128):032x}"
