"""An output row depends on its own sequence: not on threads, neighbours or unused memory."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.kernels import paged_attention_decode
from tests.kernels.calls import make_call

LENGTHS = st.lists(st.integers(0, 700), min_size=1, max_size=6)


@given(
    lengths=LENGTHS,
    threads=st.integers(2, 7),
    window=st.sampled_from([0, 40, 300]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_not_a_bit_changes_with_the_number_of_threads(
    isa: str, lengths: list[int], threads: int, window: int, seed: int
) -> None:
    call = make_call(lengths, heads=(6, 2), window=window, seed=seed)
    assert torch.equal(call.run(isa, threads), call.run(isa, 1))


@given(lengths=LENGTHS, threads=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_not_a_bit_changes_with_the_rest_of_the_batch(
    isa: str, lengths: list[int], threads: int, seed: int
) -> None:
    call = make_call(lengths, heads=(6, 2), seed=seed, shared_blocks=2)
    together = call.run(isa, threads)
    for sequence in range(len(lengths)):
        assert torch.equal(call.only(sequence).run(isa, threads)[0], together[sequence])


def test_the_order_of_sequences_only_orders_the_rows(isa: str) -> None:
    call = make_call([300, 1, 77, 128, 0])
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = replace(
        call, query=call.query[order], rows=call.rows[order], lengths=call.lengths[order]
    )
    assert torch.equal(shuffled.run(isa, 2), call.run(isa, 2)[order])


@pytest.mark.parametrize("axis", [0, 1], ids=["key", "value"])
def test_what_is_used_does_arrive(isa: str, dtype: str, axis: int) -> None:
    """Guards the poison in `make_call`: a NaN in a slot that is attended to reaches the output."""
    call = make_call([20], dtype=dtype)
    block = int(call.block_tables[0, 1])
    call.kv[block, axis, :, 3] = torch.nan
    assert call.run(isa).isnan().any(dim=2).all()


def test_numpy_and_torch_arrays_give_the_same(isa: str) -> None:
    for dtype in ("float32", "float16"):
        call = make_call([50, 3], dtype=dtype)
        out = np.empty(tuple(call.query.shape), np.float32)
        query = call.query.numpy()
        query.flags.writeable = False
        paged_attention_decode(
            query,
            call.kv.numpy(),
            call.block_tables.numpy(),
            call.rows.numpy(),
            call.lengths.numpy(),
            out,
            scale=call.scale,
            num_threads=1,
            isa=isa,
        )
        assert torch.equal(torch.from_numpy(out), call.run(isa))


def test_one_layer_of_a_larger_tensor_is_read_in_place(isa: str) -> None:
    call = make_call([50, 3])
    layers = torch.full((3, *call.kv.shape), torch.nan)
    layers[1] = call.kv
    assert torch.equal(replace(call, kv=layers[1]).run(isa), call.run(isa))


def test_concurrent_callers_do_not_share_scratch_memory(isa: str) -> None:
    calls = [make_call([400, 90], seed=seed) for seed in range(4)]
    alone = [call.run(isa, 2) for call in calls]
    together: list[list[torch.Tensor]] = [[] for _ in calls]

    def repeat(index: int) -> None:
        together[index] = [calls[index].run(isa, 2) for _ in range(20)]

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, outs in zip(alone, together, strict=True):
        assert len(outs) == 20
        assert all(torch.equal(out, expected) for out in outs)


def test_python_runs_while_the_kernel_does() -> None:
    """Seen from Python: the first rows are written, the last are not yet."""
    call = make_call([2000] * 64, same_row=True, heads=(8, 8))
    out = torch.full_like(call.query, torch.nan)
    kernel = threading.Thread(target=call.run_into, args=(out, "generic", 1))
    first, last = out.view(-1)[:1].numpy(), out.view(-1)[-1:].numpy()
    seen_between = False
    kernel.start()
    while kernel.is_alive():
        seen_between = seen_between or (np.isfinite(first[0]) and np.isnan(last[0]))
    kernel.join()
    assert seen_between
    assert out.isfinite().all()
