"""Compute threads run where they are told to. In a process of its own: ties are for good."""

import os
import subprocess
import sys

import pytest

from dualpace.kernels import pin_threads

PIN = """
import os, torch
from dualpace.kernels import pin_threads, thread_affinities
allowed = sorted(os.sched_getaffinity(0))
cpus = allowed[::-1][:2]
assert thread_affinities(len(cpus)) == [allowed] * len(cpus)
pin_threads(cpus)
print(thread_affinities(len(cpus)) == [[cpu] for cpu in cpus])
torch.set_num_threads(len(cpus))
torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # torch's threads are the same ones
print(os.sched_getaffinity(0) == {cpus[0]}, thread_affinities(len(cpus)) == [[c] for c in cpus])
"""


def test_each_thread_is_tied_to_its_processor() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PIN], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.stdout == "True\nTrue True\n", result.stderr


def test_a_processor_that_may_not_be_used_is_named() -> None:
    missing = max(os.sched_getaffinity(0)) + 1000
    with pytest.raises(ValueError, match=f"cpus: a thread may not run on processor {missing}"):
        pin_threads([missing])
    with pytest.raises(ValueError, match="cpus: -1 is no processor number"):
        pin_threads([-1])
    with pytest.raises(ValueError, match="num_threads: is 0"):
        pin_threads([])
