"""KV blocks arrive where they belong, in as few copies as the neighbours allow."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.core.blocks import BlockAllocator
from dualpace.gpu_engine.device import CpuDevice
from dualpace.gpu_engine.plan_copies import PlanCopies
from dualpace.gpu_engine.transfers import Transfers, paired_runs
from dualpace.models.kv_pool import KvPool
from dualpace.scheduling.plan import GpuPlan, KvCopy

BLOCKS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.permutations(range(16)).map(lambda p: p[:n]),
        st.permutations(range(20)).map(lambda p: p[:n]),
    )
)


@given(BLOCKS, st.data())
def test_runs_pair_every_block_once_with_neighbours_on_both_sides(
    blocks: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    first, second = blocks
    begin = data.draw(st.integers(0, len(first)))
    end = data.draw(st.integers(begin, len(first)))
    pairs = [(a + i, b + i) for a, b, n in paired_runs(first, second, begin, end) for i in range(n)]
    assert pairs == list(zip(first, second, strict=True))[begin:end]


def test_neighbours_move_in_one_copy() -> None:
    device = BlockAllocator(32).lease(10)
    host = BlockAllocator(64).lease(10)
    assert len(list(paired_runs(device.blocks, host.blocks, 0, 10))) == 1


def make_pool(num_blocks: int) -> KvPool:
    return KvPool(torch.rand(3, num_blocks, 2, 2, 16, 4))


@settings(max_examples=40)
@given(BLOCKS, st.data())
def test_blocks_go_out_and_come_back(
    blocks: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    on_device, on_host = blocks
    device_pool, host_pool = make_pool(16), make_pool(20)
    untouched = host_pool.tensor.clone()
    begin = data.draw(st.integers(0, len(on_device) - 1))
    transfers = Transfers(CpuDevice(), device_pool, host_pool)
    for layer in range(3):  # as a streamed prefill does it
        transfers.out(on_device, on_host, begin, len(on_device), (layer,))
    moved = on_host[begin:]
    assert torch.equal(host_pool.tensor[:, moved], device_pool.tensor[:, on_device[begin:]])
    others = [b for b in range(20) if b not in moved]
    assert torch.equal(host_pool.tensor[:, others], untouched[:, others])
    transfers.out(on_device, on_host, 0, len(on_device), range(3))
    original = device_pool.tensor.clone()
    device_pool.tensor[:, on_device] = 0.0
    transfers.back(on_device, on_host, len(on_device))
    assert torch.equal(device_pool.tensor, original)


def test_callbacks_of_copies_run_at_the_next_poll() -> None:
    device = CpuDevice()
    done: list[int] = []
    device.when_copied(lambda: done.append(1))
    assert done == []
    assert device.poll() is False
    assert done == [1]
    device.poll()
    assert done == [1]


class _Recorder(CpuDevice):
    """Notes in which order copies and the waits for compute are enqueued."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def begin_copies(self) -> None:
        self.order.append("behind compute")

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.order.append("copy")
        super().copy(destination, source)


def test_copies_to_the_device_wait_for_earlier_plans_and_not_for_the_running_one() -> None:
    device = _Recorder()
    device_pool, host_pool = make_pool(4), make_pool(4)
    copies = PlanCopies(device, device_pool, host_pool)
    assert device.order == ["behind compute"]
    copies.start(GpuPlan())
    device.order.clear()
    copies.back([KvCopy(7, (1, 2), (2, 3), 20)])  # while the plan runs
    assert device.order == ["copy"] * 3, "one a layer"
    assert torch.equal(device_pool.tensor[:, 1:3], host_pool.tensor[:, 2:4])
    assert copies.completed() == [7]
    copies.finish(())
    copies.start(GpuPlan(copies_in=(KvCopy(8, (0,), (0,), 1),)))
    assert device.order[3:] == ["behind compute", *["copy"] * 3]
