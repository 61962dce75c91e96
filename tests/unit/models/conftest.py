"""A miniature engine for tests of the models: greedy generation of several sequences at once."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from dualpace.checkpoint import fetch_demo_model, open_checkpoint
from dualpace.core.blocks import blocks_for
from dualpace.kernels import _native, capabilities
from dualpace.models import Decoder, KvPool, PagedAttention, TorchPagedAttention, load_decoder
from dualpace.models.forward import PrefillChunk, TokenBatch, forward

BLOCK_SIZE = 16


@dataclass
class Generated:
    """What came out for one prompt."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)
    """For each step, [vocab]."""


@dataclass
class _Sequence:
    tokens: list[int]
    blocks: list[int]
    forced: Sequence[int]
    done: int = 0
    """Tokens whose KV is in the pool."""
    result: Generated = field(default_factory=Generated)


Generate = Callable[..., list[Generated]]


@pytest.fixture
def generate() -> Generate:
    return _generate


@torch.inference_mode()
def _generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    attention: PagedAttention | None = None,
    chunks: Sequence[int] = (7, 1, 33, 61),
    forced: Sequence[Sequence[int]] | None = None,
    kv_dtype: torch.dtype | None = None,
) -> list[Generated]:
    """Generate `num_tokens` for every prompt, all in one batch, blocks scattered over the pool.

    Prompts are prefilled in chunks of the given sizes, cycled, so that the batches mix prefill
    chunks with decodes of other sequences. `forced` feeds these tokens back instead of the chosen
    ones.
    """
    sequences, pool = _scattered(decoder, prompts, num_tokens, forced, kv_dtype or decoder.dtype)
    sizes = _cycle(chunks)
    running = list(sequences)
    while running:
        batch, sampled = _batch(running, sizes)
        logits = forward(decoder, pool, attention or TorchPagedAttention(), batch)
        for sequence, row in zip(sampled, logits.log_softmax(-1), strict=True):
            step = len(sequence.result.ids)
            sequence.result.ids.append(int(row.argmax()))
            sequence.result.logprobs.append(row)
            fed = sequence.forced[step] if sequence.forced else sequence.result.ids[-1]
            sequence.tokens.append(fed)
        running = [s for s in running if len(s.result.ids) < num_tokens]
    return [sequence.result for sequence in sequences]


def _scattered(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    forced: Sequence[Sequence[int]] | None,
    kv_dtype: torch.dtype,
) -> tuple[list[_Sequence], KvPool]:
    """Give every prompt blocks from all over a pool that holds NaN wherever nobody has written."""
    counts = [blocks_for(len(prompt) + num_tokens, BLOCK_SIZE) for prompt in prompts]
    order = list(range(sum(counts) + 3))
    random.Random(5).shuffle(order)
    pool = KvPool.allocate(
        decoder.config, len(order), BLOCK_SIZE, dtype=kv_dtype, device=decoder.device
    )
    pool.tensor.fill_(float("nan"))
    sequences = [
        _Sequence(list(p), [order.pop() for _ in range(n)], forced[i] if forced else ())
        for i, (p, n) in enumerate(zip(prompts, counts, strict=True))
    ]
    return sequences, pool


def _cycle(sizes: Sequence[int]) -> Iterator[int]:
    while True:
        yield from sizes


def _batch(
    sequences: Sequence[_Sequence], sizes: Iterator[int]
) -> tuple[TokenBatch, list[_Sequence]]:
    """Put one step together; return it and the sequences whose logits it computes."""
    width = max(len(s.blocks) for s in sequences)
    # Padding of a table is no block id.
    tables = torch.full((len(sequences), width), -7, dtype=torch.int32)
    for row, s in enumerate(sequences):
        tables[row, : len(s.blocks)] = torch.tensor(s.blocks, dtype=torch.int32)
    decoding = [(row, s) for row, s in enumerate(sequences) if s.result.ids]
    prefilling = [(row, s) for row, s in enumerate(sequences) if not s.result.ids]
    taken: list[tuple[_Sequence, int]] = [(s, 1) for _, s in decoding]
    chunks: list[PrefillChunk] = []
    sampled = [s for _, s in decoding]
    logit_rows = list(range(len(decoding)))
    first = len(decoding)
    for row, s in prefilling:
        count = min(next(sizes), len(s.tokens) - s.done)
        table = tables[row, : len(s.blocks)]
        chunks.append(PrefillChunk(first=first, count=count, start=s.done, block_table=table))
        taken.append((s, count))
        first += count
        if s.done + count == len(s.tokens):
            sampled.append(s)
            logit_rows.append(first - 1)
    at = [(s, p) for s, count in taken for p in range(s.done, s.done + count)]
    for s, count in taken:
        s.done += count
    batch = TokenBatch(
        token_ids=torch.tensor([s.tokens[p] for s, p in at]),
        positions=torch.tensor([p for _, p in at]),
        block_ids=torch.tensor([s.blocks[p // BLOCK_SIZE] for s, p in at]),
        slot_ids=torch.tensor([p % BLOCK_SIZE for _, p in at]),
        block_tables=tables,
        decode_rows=torch.tensor([row for row, _ in decoding], dtype=torch.int32),
        decode_lengths=torch.tensor([s.done for _, s in decoding], dtype=torch.int32),
        prefills=chunks,
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
    )
    return batch, sampled


@pytest.fixture(scope="session")
def smollm2() -> Decoder:
    return load_decoder(
        open_checkpoint(fetch_demo_model()), dtype=torch.float32, device=torch.device("cpu")
    )


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(params=["generic", "avx2", "avx512", "avx512bf16", "amxbf16"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Caps the instruction set; skips what this machine does not run."""
    if request.param not in capabilities().available:
        pytest.skip(f"this machine does not run {request.param}")
    before = capabilities().max_isa
    _native.set_max_isa(request.param)
    yield request.param
    _native.set_max_isa(before)
