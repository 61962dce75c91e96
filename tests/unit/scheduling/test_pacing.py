"""How many prompt tokens an iteration takes."""

from hypothesis import given
from hypothesis import strategies as st

from dualpace.scheduling.pacing import FullSpeed, Spread

STEPS = st.lists(
    st.tuples(st.integers(0, 4096), st.booleans(), st.booleans(), st.integers(0, 2048)),
    max_size=100,
)


@given(STEPS)
def test_no_pacing_exceeds_what_is_left_or_holds_up_a_lone_prompt(
    steps: list[tuple[int, bool, bool, int]],
) -> None:
    spread, full = Spread(least=64), FullSpeed()
    for left, waiting, blocked, computed in steps:
        full_speed, tokens = (
            pacing.prompt_tokens(left=left, waiting=waiting, blocked=blocked, computed=computed)
            for pacing in (full, spread)
        )
        assert full_speed == left
        assert min(left, 64) <= tokens <= left
        assert waiting or tokens == left


def test_the_chunk_settles_where_prefills_keep_pace_with_room() -> None:
    """Room for 300 tokens comes free in every iteration; what is not used is left for the next."""
    spread = Spread()
    room = done = 0
    chunks = []
    blocked = False
    for _ in range(3000):
        room += 300
        wanted = spread.prompt_tokens(left=2048, waiting=True, blocked=blocked, computed=done)
        done = min(wanted, room)
        blocked = wanted > room
        room -= done
        chunks.append(done)
    settled = chunks[1000:]
    assert 280 <= sum(settled) / len(settled) <= 300
    assert max(settled) < 1000
