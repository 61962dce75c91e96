"""The benches on a tiny model: real stages, cold memory, every cell."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dualpace.checkpoint import open_checkpoint
from dualpace.core.errors import CapacityError
from dualpace.models import TorchPagedAttention
from dualpace.models.forward import TokenBatch, forward
from dualpace.profiler.bench import StageBench
from dualpace.profiler.copies import CopyBench
from dualpace.profiler.journal import Journal
from dualpace.profiler.knots import QUICK_KNOTS
from dualpace.profiler.native_bench import NativeBench
from dualpace.profiler.settings import ProfilerSettings
from dualpace.profiler.sides import Node, linear_shapes, load_node
from dualpace.profiler.sweep import cells_of, run_sweep
from dualpace.profiler.timing import Patience, Surroundings
from dualpace.testing.gold import tiny_model

HASTY = Patience(tolerance=1.0, most_s=0.0, most_disturbed_s=0.0, least=1, warm_up=0)
AROUND = Surroundings(now_s=lambda: 0.0)
SMALL = replace(QUICK_KNOTS, rows=(1, 4), grid_rows=(1, 4), kv_tokens=(64, 256), linear_rows=(2,))
KNOTS = SMALL.cut(256)


def load(tmp_path: Path, model: str = "llama3_rope", **changes: Any) -> Node:
    settings = ProfilerSettings(out=str(tmp_path / "p.json"), threads=1, memory_mib=8, **changes)
    return load_node(settings, open_checkpoint(tiny_model(model)), KNOTS, lambda: None)


@pytest.mark.parametrize("model", ["llama3_rope", "gemma3", "qwen3_moe"])
def test_every_cell_can_be_measured(tmp_path: Path, model: str) -> None:
    node = load(tmp_path, model)
    copies = CopyBench(torch.device("cpu"), max(KNOTS.sizes), lambda: None)
    with Journal(tmp_path / "p.partial", {}) as journal:
        results = run_sweep(cells_of(node, copies), journal, HASTY, AROUND)
    assert all(summary.ms > 0 for summary in results.values())
    kinds = {key.rsplit("/", 1)[0] for key in results}
    assert {"host/pre_attention", "host/post_attention", "host/head", "host/attention"} <= kinds
    assert {"host/step", "host", "gpu/prefill", "to_host", "to_device", "host/linear/qkv"} <= kinds
    assert {"gpu/pre_attention", "gpu/post_attention", "gpu/head", "gpu/attention"} <= kinds


def test_an_estimated_device_is_not_measured(tmp_path: Path) -> None:
    estimated = load(tmp_path, device="emulated:h200")
    assert not any(cell.key.startswith("gpu") for cell in cells_of(estimated, None))


def test_native_iterations_are_measured_where_they_serve(tmp_path: Path) -> None:
    dense, mixture = load(tmp_path), load(tmp_path, "qwen3_moe")
    assert dense.host.step is not None
    assert mixture.host.step is None or mixture.host.step.seconds() is not None
    bench = NativeBench(dense.host)
    parts = [bench.pre_attention(2), bench.post_attention(2), bench.decode_attention(2, 64)]
    assert all(part() > 0.0 for part in (*parts, bench.head(2), bench.opening(2, 64)))
    dense.host.pool.tensor.zero_()
    bench.step(3, 96)()
    written = (dense.host.pool.tensor != 0).any(dim=(2, 3, 4, 5)).sum(dim=1)
    assert written.tolist() == [3] * dense.host.pool.num_layers  # one block a row, in each layer


def test_a_row_may_be_longer_than_the_model_was_made_for(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3_rope"))
    longest = 2 * checkpoint.config.context_length
    settings = ProfilerSettings(out=str(tmp_path / "p.json"), threads=1, memory_mib=1024)
    knots = replace(KNOTS, kv_tokens=(64, longest))
    node = load_node(settings, checkpoint, knots, lambda: None)
    assert node.knots.kv_tokens[-1] == longest
    assert NativeBench(node.host).decode_attention(1, longest)() > 0.0


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    wide = replace(KNOTS, kv_tokens=(1 << 24,))
    settings = ProfilerSettings(out=str(tmp_path / "p.json"), threads=1, memory_mib=1)
    with pytest.raises(CapacityError, match=r"memory_mib: 1 MiB hold too little KV"):
        load_node(settings, open_checkpoint(tiny_model("llama3_rope")), wide, lambda: None)


class Recording(TorchPagedAttention):
    """Remembers what was attended to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def decode(self, q: Any, kv_layer: Any, block_tables: Any, *rest: Any, **options: Any) -> Any:
        self.seen.append((kv_layer.data_ptr(), int(block_tables[0, 0])))
        return super().decode(q, kv_layer, block_tables, *rest, **options)


def test_successive_calls_read_other_layers_and_other_memory(tmp_path: Path) -> None:
    node = load(tmp_path)
    attention = Recording()
    assert node.device is not None
    sample = StageBench(replace(node.device, attention=attention)).decode_attention(1, 64)
    for _ in range(4):
        sample()
    layers, firsts = zip(*attention.seen, strict=True)
    assert len(set(layers)) == node.device.pool.num_layers > 1
    assert len(set(firsts)) > 1
    assert all(a != b for a, b in itertools.pairwise(layers))


def test_kv_memory_is_filled_everywhere(tmp_path: Path) -> None:
    tensor = load(tmp_path).host.pool.tensor
    assert bool((tensor.abs().sum(dim=(2, 3, 4, 5)) > 0).all())


@torch.inference_mode()
def test_a_measured_iteration_computes_what_serving_computes(tmp_path: Path) -> None:
    """The logits that the bench samples from are those of `forward` on the same batch."""
    node = load(tmp_path)
    assert node.device is not None
    side, logits = node.device, []
    head = side.decoder.head

    def keep(hidden: torch.Tensor) -> torch.Tensor:
        logits.append(head(hidden))
        return logits[-1]

    pool = side.pool
    before = pool.tensor.clone()
    side.decoder.head = keep  # type: ignore[method-assign]
    sample: Callable[[], float] = StageBench(side).step(3, 96)
    sample()
    side.decoder.head = head  # type: ignore[method-assign]
    assert pool.num_layers == side.decoder.num_layers
    first = next(
        i for i in range(pool.num_blocks) if not torch.equal(before[:, i], pool.tensor[:, i])
    )
    assert first % 2 == 1  # each row's last block of two has the new token
    pool.tensor.copy_(before)
    blocks = torch.arange(first - 1, first + 5, dtype=torch.int32).view(3, 2)
    batch = TokenBatch(
        token_ids=torch.tensor([0, 7, 14]),
        positions=torch.full((3,), 31),
        block_ids=blocks[:, 1].long(),
        slot_ids=torch.full((3,), 15),
        block_tables=blocks,
        decode_rows=torch.arange(3, dtype=torch.int32),
        decode_lengths=torch.full((3,), 32, dtype=torch.int32),
        prefills=(),
        logit_rows=torch.arange(3),
    )
    wanted = forward(side.decoder, pool, side.attention, batch)
    torch.testing.assert_close(logits[0], wanted)


@pytest.mark.parametrize("model", ["llama3_rope", "qwen3_moe"])
def test_matrix_products_are_told_apart(tmp_path: Path, model: str) -> None:
    node = load(tmp_path, model)
    config = open_checkpoint(tiny_model(model)).config
    for kind, (outputs, inputs) in linear_shapes(config).items():
        if kind in node.host.linears:
            assert node.host.linears[kind][0](torch.zeros(1, inputs)).shape == (1, outputs)
