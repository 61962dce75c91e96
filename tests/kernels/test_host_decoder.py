"""A decoder's step computes the same whoever joins, however its rows are grouped and screened."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dualpace.kernels import DecoderSizes, HostDecoder, HostLayer, PackedLinear, capabilities
from dualpace.kernels.decoder import StepRows

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER = 4, 2, 16, 64, 96
LAYERS, BLOCK_SIZE, MOST_ROWS = 3, 16, 12
LEVELS = [
    *(name for name in ("generic", "avx2", "avx512") if name in capabilities().available),
    "portable-avx512",
]


def packed(outputs: int, inputs: int) -> PackedLinear:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    return PackedLinear(weight, format="float32", num_threads=1)


def make_decoder(head: Tensor) -> HostDecoder:
    torch.manual_seed(0)
    rope = torch.randn(256, HEAD_DIM)
    layers = [
        HostLayer(
            input_norm=torch.ones(HIDDEN),
            qkv=packed((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
            q_norm=None,
            k_norm=None,
            output=packed(HIDDEN, HEADS * HEAD_DIM),
            output_norm=None,
            feed_forward_norm=torch.ones(HIDDEN),
            gate_up=packed(2 * INNER, HIDDEN),
            down=packed(HIDDEN, INNER),
            feed_forward_output_norm=None,
            rope=rope,
            activation="silu",
            window=window,
        )
        for window in (0, 20, 0)
    ]
    sizes = DecoderSizes(
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        inner=INNER,
        norm_eps=1e-5,
        attention_scale=HEAD_DIM**-0.5,
        embedding_scale=1.0,
    )
    return HostDecoder(
        sizes,
        embedding=torch.randn(head.shape[0], HIDDEN),
        final_norm=torch.ones(HIDDEN),
        head=PackedLinear(head, format="float32", num_threads=1),
        layers=layers,
        screening_threads=1,
    )


@dataclass
class Sequences:
    lengths: np.ndarray
    vocab: int

    def __post_init__(self) -> None:
        width = -(-int(self.lengths.max()) // BLOCK_SIZE)
        count = len(self.lengths) * width
        order = np.random.default_rng(0).permutation(count)
        self.tables = order.astype(np.int32).reshape(len(self.lengths), width)
        shape = (LAYERS, count, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.kv = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def rows(self, which: list[int]) -> StepRows:
        tokens = np.array([(7 * row + 3) % self.vocab for row in which], np.int64)
        return tokens, np.array(which, np.int32), self.lengths[which]


@dataclass
class Outcome:
    logits: Tensor
    best: list[int]
    finite: list[bool]
    kv: Tensor


def run(decoder: HostDecoder, sequences: Sequences, which: list[int], **options: Any) -> Outcome:
    """One step over a copy of the sequences' KV; all of them may join."""
    capacity = len(sequences.lengths)
    logits = torch.full((capacity, sequences.vocab), torch.nan)
    best, finite = np.full(capacity, -1), np.zeros(capacity, np.bool_)
    kv = sequences.kv.clone()
    token_ids, rows, lengths = sequences.rows(which)
    size = decoder.step(
        token_ids=token_ids,
        rows=rows,
        lengths=lengths,
        block_tables=sequences.tables,
        kv=kv,
        logits=logits,
        best=best,
        finite=finite,
        **options,
    )
    return Outcome(logits[:size], best[:size].tolist(), finite[:size].tolist(), kv)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_groups_wishes_and_newcomers_change_nothing(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 15, 16, 17, 31, 33, 48, 49, 97, 500]), "vocab")
    torch.manual_seed(data.draw(st.integers(0, 9), "seed"))
    head = torch.randn(vocab, HIDDEN)
    kind = data.draw(st.sampled_from(["any", "ties", "zeros", "near", "broken KV"]), "kind")
    if kind == "ties":
        head[:] = head[0]
    elif kind == "zeros":
        head[:] = 0.0
    elif kind == "near":
        head[vocab // 2 :] = head[: vocab - vocab // 2] * (1 + 2.0**-20)
    decoder = make_decoder(head)
    lengths = data.draw(
        st.lists(st.integers(30, 33), min_size=2, max_size=MOST_ROWS)
        | st.lists(st.integers(1, 90), min_size=2, max_size=MOST_ROWS)
        | st.lists(st.integers(1, 250), min_size=2, max_size=5),
        "lengths",
    )
    sequences = Sequences(np.array(lengths, np.int32), vocab)
    if kind == "broken KV":
        sequences.kv[:, sequences.tables[0, 0]] = torch.inf
    began = list(range(data.draw(st.integers(1, len(lengths)), "began")))
    later, joined = list(range(len(began), len(lengths))), list[int]()

    def serve(behind: int | None) -> StepRows | None:
        came = [] if behind is None else later[: data.draw(st.integers(0, len(later)), "come")]
        del later[: len(came)]
        joined.extend(came)
        return sequences.rows(came) if came else None

    isa = data.draw(st.sampled_from(LEVELS), "isa")

    wanted = np.array([data.draw(st.booleans()) for _ in began], np.bool_)
    got = run(
        decoder,
        sequences,
        began,
        num_threads=data.draw(st.integers(1, 4), "threads"),
        rows_in_turns=data.draw(st.sampled_from([0, 1, 5]), "in turns from"),
        isa=isa,
        wanted=wanted,
        flag=np.ones(1, np.int32),
        serve=serve,
    )
    expected = run(decoder, sequences, [*began, *joined], num_threads=1, isa=isa)
    assert got.best == expected.best
    assert got.finite == expected.finite
    told = [*wanted.tolist(), *(True for _ in joined)]
    assert torch.equal(got.logits[told].nan_to_num(), expected.logits[told].nan_to_num())
    assert torch.equal(got.kv.nan_to_num(), expected.kv.nan_to_num())
    for row, (best, finite) in enumerate(zip(expected.best, expected.finite, strict=True)):
        assert not finite or best == int(expected.logits[row].argmax())


def passes_in_turns(lengths: list[int], *, threads: int, at_least: int) -> int:
    decoder = make_decoder(torch.randn(16, HIDDEN))
    sequences = Sequences(np.array(lengths, np.int32), 16)
    run(decoder, sequences, list(range(len(lengths))), num_threads=threads, rows_in_turns=at_least)
    return decoder.passes_in_turns


def test_rows_take_turns_from_so_many_on() -> None:
    for threads in (1, 2, 3):
        assert passes_in_turns([40] * 8, threads=threads, at_least=8) == 1
        assert passes_in_turns([4, 250, 4], threads=threads, at_least=2) == 1
        assert passes_in_turns([40] * 8, threads=threads, at_least=9) == 0
        assert passes_in_turns([40] * 8, threads=threads, at_least=0) == 0
        assert passes_in_turns([40], threads=threads, at_least=1) == 0
