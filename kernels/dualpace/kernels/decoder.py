"""A decoder on the host, one token of each of many sequences at a time, over paged KV.

Knows tensors and sizes; what they are called in a checkpoint, and who owns KV blocks, is the
caller's. Activations are fp32 whatever the weights are held in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dualpace.kernels import _native
from dualpace.kernels.attention import HostArray
from dualpace.kernels.linear import PackedLinear

StepRows = tuple[HostArray, HostArray, HostArray]
"""token_ids, rows and lengths of `HostDecoder.step`, of those who join in the middle of it."""


class StageSeconds(NamedTuple):
    """Where the time of steps went, in seconds."""

    embed: float
    pre_attention: float
    """Norm, QKV, rope, and the write of keys and values."""
    attention: float
    post_attention: float
    """Output, residual, norm, feed-forward, residual."""
    head: float
    """Final norm, logits, and the greatest of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """Sizes and factors that all layers share."""

    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Of the feed-forward stages; a multiple of 16."""
    norm_eps: float
    attention_scale: float
    embedding_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayer:
    """Parts of one layer. Vectors are float32; None: the model has no such part."""

    input_norm: HostArray
    """[hidden]"""
    qkv: PackedLinear
    """hidden to (heads + 2 * kv_heads) * head_dim"""
    q_norm: HostArray | None
    """[head_dim]"""
    k_norm: HostArray | None
    """[head_dim]"""
    output: PackedLinear
    """heads * head_dim to hidden"""
    output_norm: HostArray | None
    """[hidden], of the attention output before it is added"""
    feed_forward_norm: HostArray
    """[hidden]"""
    gate_up: PackedLinear
    """hidden to 2 * inner: gates, then what is gated"""
    down: PackedLinear
    """inner to hidden"""
    feed_forward_output_norm: HostArray | None
    """[hidden]"""
    rope: HostArray
    """[positions, rotary_dim] float32: rotary_dim / 2 cosines, then as many sines"""
    activation: str
    """silu, gelu or gelu_tanh"""
    window: int
    """Sliding window in positions; 0: none."""


class HostDecoder:
    """Holds references to its parts; the arrays must not be resized or written to."""

    def __init__(
        self,
        sizes: DecoderSizes,
        *,
        embedding: HostArray,
        final_norm: HostArray,
        head: PackedLinear,
        layers: Sequence[HostLayer],
        screening_threads: int = 0,
    ) -> None:
        """Put a decoder together.

        embedding is [vocab, hidden] float32, float16 or bfloat16, final_norm [hidden] float32,
        `head` maps hidden to vocab. Raises ValueError naming the part that does not fit.

        Unless `screening_threads` is 0, these pack the head once more, in int16. Where only the
        greatest logit of a row is asked for, all are computed in that; those that may be the
        greatest, given how far that arithmetic can be off at most, are then computed with the head
        itself. The answer is the same. It is not done for a head that is int8 or int16 itself, or
        has weights that are not finite; see `screen_bytes`.
        """
        self._native = _native.HostDecoder(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            inner=sizes.inner,
            norm_eps=sizes.norm_eps,
            attention_scale=sizes.attention_scale,
            embedding_scale=sizes.embedding_scale,
        )
        self.screen_bytes = self._native.set_ends(
            embedding=embedding,
            final_norm=final_norm,
            head=head.native,
            screening_threads=screening_threads,
        )
        """Of the head's second form; 0: there is none."""
        for layer in layers:
            self._native.add_layer(
                input_norm=layer.input_norm,
                qkv=layer.qkv.native,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                output=layer.output.native,
                output_norm=layer.output_norm,
                feed_forward_norm=layer.feed_forward_norm,
                gate_up=layer.gate_up.native,
                down=layer.down.native,
                feed_forward_output_norm=layer.feed_forward_output_norm,
                rope=layer.rope,
                activation=layer.activation,
                window=layer.window,
            )
        self._native.complete()

    def step(
        self,
        *,
        token_ids: HostArray,
        rows: HostArray,
        lengths: HostArray,
        block_tables: HostArray,
        kv: HostArray,
        logits: HostArray,
        best: HostArray,
        finite: HostArray,
        wanted: HostArray | None = None,
        num_threads: int,
        rounding: bool = False,
        isa: str | None = None,
        rows_in_turns: int = 0,
        flag: HostArray | None = None,
        serve: Callable[[int | None], StepRows | None] | None = None,
    ) -> int:
        """Write the KV of one token of each of `batch` sequences, and compute what may follow it.

        Row b is the token at position lengths[b] - 1 of the sequence whose blocks are
        block_tables[rows[b]]. No two rows may be of one sequence. For a given instruction set a
        row's logits depend on its own sequence alone, to the last bit.

        Arguments:
            token_ids: [batch] int64.
            rows: [batch] int32.
            lengths: [batch] int32, the current token included.
            block_tables: [num_tables, table_width] int32.
            kv: [layers, num_blocks, 2, kv_heads, block_size, head_dim] float32, float16 or
                bfloat16; read and written.
            logits: [capacity, vocab] float32, overwritten; capacity is at least batch, and what it
                is beyond that is room for those who join.
            best: [capacity] int64, overwritten: the greatest logit's id, the first of equals.
            finite: [capacity] bool, overwritten: whether all logits of the row are; else best is 0.
            wanted: [batch] bool, whose logits are wanted; None: everybody's. Of the others only
                `best` and `finite` are told, which takes less time if the head is screened; in
                `logits` anything may stand. Those who join are wanted.
            num_threads: See `paged_attention_decode`.
            rounding: See `PackedLinear.multiply` and `paged_attention_decode`.
            isa: See `paged_attention_decode`.
            rows_in_turns: From so many rows on, two groups of them take turns: while one is
                multiplied, the other's keys and values are fetched into the caches and attended to;
                each reads all weights. 0: never. The outcome is the same.
            flag: [1] int32, looked at before each layer and before the head.
            serve: Called there, in the calling thread and with the interpreter lock, where the flag
                is not zero. It must not touch what the step reads, nor call `step`. It is told how
                many layers rows that join now have to catch up with, or None if none can any more,
                and returns their token_ids, rows and lengths, or None. Those layers are computed
                for them alone, and then they go on with the others. What it raises is raised once
                the step is complete, and it is not called again in this step.

        Returns the number of rows: the batch, then those who joined, in their order.

        Raises ValueError naming the argument, its size or value, and what is allowed, before
        anything is written; with those who join, in the middle of the step. The interpreter lock is
        released meanwhile.

        """
        return self._native.step(
            token_ids=token_ids,
            rows=rows,
            lengths=lengths,
            block_tables=block_tables,
            kv=kv,
            logits=logits,
            best=best,
            finite=finite,
            wanted=wanted,
            rounding=rounding,
            num_threads=num_threads,
            isa=isa,
            rows_in_turns=rows_in_turns,
            flag=flag,
            serve=serve,
        )

    @property
    def stage_seconds(self) -> StageSeconds:
        """Seconds of all steps so far, by stage, on the calling thread."""
        return StageSeconds(*self._native.stage_seconds)

    @property
    def passes_in_turns(self) -> int:
        """How often two groups took turns so far: once a step, if nobody joins."""
        return self._native.passes_in_turns
