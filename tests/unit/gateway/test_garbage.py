"""What a gateway keeps for its whole life is left alone by the collector; the rest is not."""

import subprocess
import sys

from dualpace.gateway.random_ids import random_bits, random_id


def test_what_is_loaded_is_not_gone_through_again_and_cycles_are_still_freed() -> None:
    code = """
import gc, weakref
kept = [[] for _ in range(50_000)]
from dualpace.gateway.garbage import settle_garbage_collector
settle_garbage_collector()
assert gc.get_freeze_count() > 50_000
assert len(gc.get_objects()) < 20_000, "looked at by every full collection"

class Node: pass
node = Node()
node.self = node
gone = weakref.ref(node)
del node
junk = [[] for _ in range(200_000)]
assert gone() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ids_do_not_repeat_within_a_process_or_between_two() -> None:
    ids = {random_id() for _ in range(1000)}
    assert len(ids) == 1000 and {len(made) for made in ids} == {32}
    assert all(0 <= random_bits(63) < 1 << 63 for _ in range(1000))
    code = "from dualpace.gateway.random_ids import random_id; print(random_id())"
    made = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)]
    assert made[0] != made[1]
