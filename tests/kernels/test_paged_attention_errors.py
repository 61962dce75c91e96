"""Each wrong call of paged attention has a message with the argument and the offending size."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dualpace.kernels import paged_attention_decode
from tests.kernels.calls import make_call


def arguments() -> dict[str, Any]:
    """A right call: batch 2, 4 query and 2 kv heads, 3 blocks a table, 8 blocks in all."""
    call = make_call([20, 17], heads=(4, 2), head_dim=64, block_size=16)
    return {
        "query": call.query,
        "kv": call.kv,
        "block_tables": call.block_tables,
        "rows": call.rows,
        "lengths": call.lengths,
        "out": torch.empty_like(call.query),
        "scale": 0.125,
        "num_threads": 1,
    }


def test_the_call_that_the_others_vary_is_right() -> None:
    values = arguments()
    paged_attention_decode(**values)
    assert values["out"].isfinite().all()


def replaced(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.update({name: value})


def changed(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda values: values.update({name: change(values[name])})


def set_at(name: str, index: Any, value: int) -> Callable[[dict[str, Any]], None]:
    return lambda values: values[name].__setitem__(index, value)


def smaller_heads(values: dict[str, Any]) -> None:
    values["query"], values["out"] = torch.zeros(2, 3, 64), torch.zeros(2, 3, 64)


def head_dim_of(size: int) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        values["query"], values["out"] = torch.zeros(2, 4, size), torch.zeros(2, 4, size)
        values["kv"] = torch.zeros(8, 2, 2, 16, size)

    return change


VALUE_ERRORS = {
    "query rank": (changed("query", lambda t: t[0]), "query: has shape [4, 64], it must be [batch"),
    "kv rank": (changed("kv", lambda t: t[0]), "kv: has shape [2, 2, 16, 64], it must be [num_bl"),
    "tables rank": (changed("block_tables", lambda t: t[0]), "block_tables: has shape [3], it m"),
    "rows rank": (changed("rows", lambda t: t[None]), "rows: has shape [1, 2], it must be [batch]"),
    "lengths rank": (changed("lengths", lambda t: t[None]), "lengths: has shape [1, 2], it must"),
    "out rank": (changed("out", lambda t: t[0]), "out: has shape [4, 64], it must be [batch, h"),
    "no values": (changed("kv", lambda t: t[:, :1].contiguous()), "kv: axis 1 is 1, it must be 2"),
    "head_dims differ": (
        changed("kv", lambda t: t[..., :32].contiguous()),
        "kv: head_dim is 32, it must be 64 as in query",
    ),
    "rows size": (changed("rows", lambda t: t[:1]), "rows: batch is 1, it must be 2 as in query"),
    "lengths size": (changed("lengths", lambda t: t[:1]), "lengths: batch is 1, it must be 2 as"),
    "out batch": (changed("out", lambda t: t[:1]), "out: batch is 1, it must be 2 as in query"),
    "out heads": (changed("out", lambda t: t[:, :2].contiguous()), "out: heads is 2, it must be 4"),
    "out head_dim": (
        changed("out", lambda t: t[..., :8].contiguous()),
        "out: head_dim is 8, it must be 64 as in query",
    ),
    "query type": (changed("query", torch.Tensor.half), "query: is float16, it must be float32"),
    "kv type": (changed("kv", torch.Tensor.double), "kv: is float64, it must be float32, float16"),
    "tables type": (changed("block_tables", torch.Tensor.long), "block_tables: is int64, it must"),
    "rows type": (changed("rows", torch.Tensor.long), "rows: is int64, it must be int32"),
    "lengths type": (changed("lengths", torch.Tensor.short), "lengths: is int16, it must be int32"),
    "out type": (changed("out", torch.Tensor.bfloat16), "out: is bfloat16, it must be float32"),
    "query strides": (
        changed("query", lambda t: torch.zeros(2, 64, 4).transpose(1, 2)),
        "query: of shape [2, 4, 64] must be contiguous",
    ),
    "kv strides": (
        changed("kv", lambda t: t.repeat(1, 1, 1, 2, 1)[:, :, :, ::2]),
        "must be contiguous",
    ),
    "out strides": (
        changed("out", lambda t: torch.zeros(2, 8, 64)[:, ::2]),
        "out: of shape [2, 4, 64] must be contiguous",
    ),
    "heads not a multiple": (smaller_heads, "query: heads is 3, it must be a positive multiple of"),
    "head_dim not a multiple": (head_dim_of(60), "query: head_dim is 60, it must be a multiple of"),
    "head_dim too large": (head_dim_of(264), "query: head_dim is 264"),
    "block_size": (
        changed("kv", lambda t: t[:, :, :, :8].contiguous()),
        "kv: block_size is 8, it must be a positive multiple of 16",
    ),
    "row too large": (set_at("rows", 1, 2), "rows[1]: is 2, block_tables has rows 0 to 1"),
    "row negative": (set_at("rows", 0, -1), "rows[0]: is -1, block_tables has rows 0 to 1"),
    "length negative": (set_at("lengths", 1, -5), "lengths[1]: is -5, it must not be negative"),
    "length beyond table": (
        set_at("lengths", 0, 49),
        "lengths[0]: is 49, block_tables has room for 48",
    ),
    "window": (replaced("window", -1), "window: is -1, it must be 0 (no window) or positive"),
    "scale": (replaced("scale", float("nan")), "scale: must be finite"),
    "no threads": (replaced("num_threads", 0), "num_threads: is 0, it must be from 1 to 1024"),
    "too many threads": (replaced("num_threads", 1025), "num_threads: is 1025, it must be from 1"),
    "isa": (replaced("isa", "sse9"), "isa: 'sse9' is not one of generic, avx2, avx512"),
}


@pytest.mark.parametrize("name", VALUE_ERRORS)
def test_value_errors_name_argument_and_size(name: str) -> None:
    change, message = VALUE_ERRORS[name]
    values = arguments()
    change(values)
    with pytest.raises(ValueError, match=re.escape(message)):
        paged_attention_decode(**values)


@pytest.mark.parametrize("block", [-1, 8, 2**31 - 1])
def test_a_block_out_of_range_is_refused_only_where_it_is_used(block: int) -> None:
    values = arguments()
    row = int(values["rows"][1])
    values["block_tables"][row, 2] = block  # behind the last key
    paged_attention_decode(**values)
    assert values["out"].isfinite().all()
    values["block_tables"][row, 1] = block
    message = f"block_tables[{row}, 1]: is {block}, kv has blocks 0 to 7"
    with pytest.raises(ValueError, match=re.escape(message)):
        paged_attention_decode(**values)


def test_a_block_in_front_of_the_window_may_be_anything() -> None:
    values = arguments()
    values["block_tables"][int(values["rows"][0]), 0] = -1
    paged_attention_decode(**values | {"window": 4})
    assert values["out"].isfinite().all()


@pytest.mark.parametrize("name", ["query", "kv", "block_tables", "rows", "lengths", "out"])
@pytest.mark.parametrize("value", [None, [1.0, 2.0], "text", 3])
def test_what_is_no_array_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name}: .* is needed, not"):
        paged_attention_decode(**arguments() | {name: value})


def test_a_read_only_output_is_refused() -> None:
    out = np.zeros((2, 4, 64), np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="out: a writable array is needed"):
        paged_attention_decode(**arguments() | {"out": out})


def test_a_tensor_on_another_device_is_refused() -> None:
    with pytest.raises((ValueError, BufferError, RuntimeError, NotImplementedError)):
        paged_attention_decode(**arguments() | {"kv": torch.empty(8, 2, 2, 16, 64, device="meta")})


def test_nothing_is_written_when_an_argument_is_wrong() -> None:
    values = arguments()
    values["out"].fill_(7.0)
    values["lengths"][1] = -1
    with pytest.raises(ValueError, match="lengths"):
        paged_attention_decode(**values)
    assert (values["out"] == 7.0).all()
