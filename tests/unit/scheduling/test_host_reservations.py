"""What the host grants and what it refuses, from the arena's own bounds."""

from dualpace.core.messages import Refused, Reserve, Reserved
from dualpace.scheduling.cpu import HostLimits, HostScheduler


def test_what_no_row_of_the_block_tables_can_hold_is_refused() -> None:
    limits = HostLimits(
        num_blocks=64, block_size=4, num_slots=4, max_batch=4, max_blocks_per_sequence=3
    )
    scheduler = HostScheduler(limits)
    scheduler.device_joined()
    scheduler.reserve(Reserve(1, 12))
    scheduler.reserve(Reserve(2, 13))
    answers = [a for a in scheduler.drain().handoff if isinstance(a, Reserved | Refused)]
    assert [type(answer) for answer in answers] == [Reserved, Refused]
    assert isinstance(answers[1], Refused)
    assert answers[1].reason == "4 blocks wanted, a sequence has 3 at most"
    scheduler.check_integrity()
