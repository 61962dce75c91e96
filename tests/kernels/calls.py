"""Paged attention calls for tests: random, ragged, and poisoned wherever they must not be read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dualpace.kernels import _native, paged_attention_decode, reference

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Call:
    """One call's arguments. Whatever the call must not read is NaN or an impossible id."""

    query: torch.Tensor
    kv: torch.Tensor
    block_tables: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    scale: float
    window: int
    rounding: bool = False

    def run(self, isa: str, num_threads: int = 1) -> torch.Tensor:
        out = torch.full_like(self.query, torch.nan)
        self.run_into(out, isa, num_threads)
        return out

    def run_into(self, out: torch.Tensor, isa: str, num_threads: int) -> None:
        paged_attention_decode(
            self.query,
            self.kv,
            self.block_tables,
            self.rows,
            self.lengths,
            out,
            scale=self.scale,
            window=self.window,
            rounding=self.rounding,
            num_threads=num_threads,
            isa=isa,
        )

    def only(self, sequence: int) -> "Call":
        """The same call for one sequence of the batch."""
        one = slice(sequence, sequence + 1)
        return replace(self, query=self.query[one], rows=self.rows[one], lengths=self.lengths[one])

    def check(self, out: torch.Tensor) -> None:
        """Assert that `out` is as near to the oracle as fp32 arithmetic must be."""
        arguments: dict[str, Any] = {
            "query": self.query.double().numpy(),
            "kv": self.kv.double().numpy(),
            "block_tables": self.block_tables.numpy(),
            "rows": self.rows.numpy(),
            "lengths": self.lengths.numpy(),
            "scale": self.scale,
            "window": self.window,
        }
        expected = reference.paged_attention_decode(**arguments)
        bound = reference.paged_attention_bound(
            **arguments, span_keys=_native.MOST_SPAN_KEYS, rounded_weights=self.rounding
        )
        error = np.abs(out.double().numpy() - expected)
        assert (error <= bound).all(), f"{error.max()} against {bound.max()} allowed"


def _used_slots(
    tables: npt.NDArray[np.int64], rows: Sequence[int], call: "Call"
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which [num_blocks, block_size] slots and which table entries `call` needs."""
    block_size = call.kv.shape[3]
    slots = np.zeros((call.kv.shape[0], block_size), dtype=bool)
    entries = np.zeros(tables.shape, dtype=bool)
    for row, length in zip(rows, call.lengths.tolist(), strict=True):
        positions = np.array(reference.attended_positions(length, call.window), dtype=np.int64)
        slots[tables[row, positions // block_size], positions % block_size] = True
        entries[row, positions // block_size] = True
    return slots, entries


def make_call(
    lengths: Sequence[int],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    block_size: int = 16,
    window: int = 0,
    dtype: str = "float32",
    seed: int = 0,
    shared_blocks: int = 0,
    same_row: bool = False,
) -> Call:
    """Random call. `heads` is (query, kv).

    Tables are shuffled. Their first `shared_blocks` entries are the same, as after a common prefix;
    with `same_row` all sequences read one table.
    """
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    batch, width = len(lengths), -(-max(lengths, default=0) // block_size) + 1
    num_tables = 1 if same_row else max(batch, 1)
    num_blocks = num_tables * width + 2
    tables = rng.permutation(num_blocks)[: num_tables * width].reshape(num_tables, width)
    tables[:, :shared_blocks] = tables[0, :shared_blocks]
    rows = [0] * batch if same_row else rng.permutation(batch).tolist()
    call = Call(
        query=torch.randn(batch, heads[0], head_dim, generator=generator),
        kv=torch.randn(num_blocks, 2, heads[1], block_size, head_dim, generator=generator),
        block_tables=torch.from_numpy(tables),
        rows=torch.tensor(rows, dtype=torch.int32),
        lengths=torch.tensor(list(lengths), dtype=torch.int32),
        scale=head_dim**-0.5,
        window=window,
    )
    slots, entries = _used_slots(tables, rows, call)
    unused = torch.from_numpy(~slots)[:, None, None, :, None]
    impossible = rng.choice([-1, num_blocks, 2**31 - 1], tables.shape)
    return replace(
        call,
        kv=call.kv.masked_fill(unused, torch.nan).to(DTYPES[dtype]),
        block_tables=torch.from_numpy(np.where(entries, tables, impossible).astype(np.int32)),
    )
