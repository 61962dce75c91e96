"""The block allocator never loses, doubles or invents a block, and keeps neighbours together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.blocks import BlockAllocator, BlockLease, blocks_for, contiguous_runs
from dualpace.core.errors import CapacityError

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["lease", "grow", "free"]), st.integers(0, 12)), max_size=80
)


@given(OPERATIONS, st.integers(1, 40))
def test_blocks_are_conserved_under_any_use(
    operations: list[tuple[str, int]], num_blocks: int
) -> None:
    allocator = BlockAllocator(num_blocks)
    leases: list[BlockLease] = []
    for operation, number in operations:
        free = allocator.free_blocks
        try:
            if operation == "lease":
                leases.append(allocator.lease(number))
            elif operation == "grow" and leases:
                leases[number % len(leases)].grow(number)
            elif operation == "free" and leases:
                leases.pop(number % len(leases)).free()
        except CapacityError:
            assert number > free
        held = [block for lease in leases for block in lease.blocks]
        assert len(set(held)) == len(held) == allocator.used_blocks
        allocator.check_integrity()
    for lease in leases:
        lease.free()
    assert allocator.free_blocks == num_blocks
    allocator.check_integrity()


def test_an_empty_pool_gives_one_run() -> None:
    lease = BlockAllocator(100).lease(30)
    assert contiguous_runs(lease.blocks) == [(0, lease.blocks[0], 30)]


def test_growth_continues_behind_the_last_block() -> None:
    allocator = BlockAllocator(100)
    first = allocator.lease(4)
    first.grow(3)
    assert len(contiguous_runs(first.blocks)) == 1


def test_the_smallest_sufficient_hole_is_used() -> None:
    allocator = BlockAllocator(20)
    leases = [allocator.lease(n) for n in (5, 1, 3, 1, 10)]
    leases[0].free()
    leases[2].free()
    assert list(allocator.lease(3).blocks) == [6, 7, 8]


def test_a_failed_growth_changes_nothing() -> None:
    allocator = BlockAllocator(4)
    lease = allocator.lease(3)
    with pytest.raises(CapacityError, match="2 KV blocks wanted, 1 of 4 free"):
        lease.grow(2)
    assert len(lease) == 3
    assert allocator.free_blocks == 1


def test_a_double_free_is_caught() -> None:
    lease = BlockAllocator(4).lease(2)
    lease.free()
    with pytest.raises(AssertionError, match="double free"):
        lease.free()


@given(st.lists(st.integers(0, 30), unique=True))
def test_runs_cover_the_blocks_in_order(blocks: list[int]) -> None:
    runs = contiguous_runs(blocks)
    assert [b for _, first, n in runs for b in range(first, first + n)] == blocks
    assert [offset for offset, _, _ in runs] == [
        sum(n for _, _, n in runs[:i]) for i in range(len(runs))
    ]


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_blocks_for_is_the_smallest_number_that_holds_all(tokens: int, size: int) -> None:
    count = blocks_for(tokens, size)
    assert count * size >= tokens > (count - 1) * size - (tokens == 0)


@given(st.integers(1, 40), st.data())
def test_blocks_held_before_the_allocator_was_made_are_held_again(
    num_blocks: int, data: st.DataObject
) -> None:
    allocator = BlockAllocator(num_blocks)
    order = data.draw(st.permutations(range(num_blocks)))
    cut = data.draw(st.integers(0, num_blocks))
    second = data.draw(st.integers(cut, num_blocks))
    leases = [allocator.lease_these(order[:cut]), allocator.lease_these(order[cut:second])]
    allocator.check_integrity()
    assert [list(lease.blocks) for lease in leases] == [order[:cut], order[cut:second]]
    assert allocator.free_blocks == num_blocks - second
    for wrong in ([order[0]] if cut else [num_blocks], [num_blocks], [-1], [order[-1]] * 2):
        with pytest.raises(CapacityError):
            allocator.lease_these(wrong)
    allocator.check_integrity()
    for lease in leases:
        lease.free()
    assert allocator.free_blocks == num_blocks
