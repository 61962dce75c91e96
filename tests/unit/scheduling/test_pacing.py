"""How many prompt tokens an iteration takes."""

from hypothesis import given
from hypothesis import strategies as st

from dualpace.scheduling.pacing import FullSpeed, Spread


@given(st.lists(st.tuples(st.integers(0, 4096), st.booleans(), st.booleans()), max_size=100))
def test_no_pacing_exceeds_what_is_left_or_holds_up_a_lone_prompt(
    steps: list[tuple[int, bool, bool]],
) -> None:
    spread, full = Spread(least=64), FullSpeed()
    for left, waiting, blocked in steps:
        assert full.prompt_tokens(left=left, waiting=waiting, blocked=blocked) == left
        tokens = spread.prompt_tokens(left=left, waiting=waiting, blocked=blocked)
        assert min(left, 64) <= tokens <= left
        assert waiting or tokens == left


def test_the_chunk_settles_where_prefills_keep_pace_with_room() -> None:
    """Room for 300 tokens comes free in every iteration; what is not used is left for the next."""
    spread = Spread()
    room, chunks = 0, []
    blocked = False
    for _ in range(2000):
        room += 300
        wanted = spread.prompt_tokens(left=2048, waiting=True, blocked=blocked)
        blocked = wanted > room
        done = min(wanted, room)
        room -= done
        chunks.append(done)
    settled = chunks[1000:]
    assert 280 <= sum(settled) / len(settled) <= 300
    assert max(settled) < 1200
