"""Lists of CPUs as Linux writes them: `0-3,8`."""

from collections.abc import Iterable


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Return the numbers of a list, rising, each once. Raises ValueError for what is no list."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip() and not text.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text.strip()!r} is not a list of CPUs such as 0-3,8")
        low, high = int(first), int(last or first)
        if high < low:
            raise ValueError(f"{part.strip()!r} ends before it begins")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def format_cpulist(cpus: Iterable[int]) -> str:
    """Return the shortest list; empty for none."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
