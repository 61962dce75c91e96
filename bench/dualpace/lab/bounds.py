"""What a node could come to at best: upper bounds of throughput, lower bounds of latency.

A fluid model of a node with work for everybody, by the cost model that the runs go by. Tokens come
from `device_rows` on the device and `host_rows` on the host; their prompts are all computed on the
device, as fast as requests end. Left out is what makes real schedules slower: rounding to whole
requests, memory of prompts under way, waiting for boundaries and for each other, uneven loads. So
no policy that mixes requests of all lengths on both sides does better. It knows no policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpace.lab.workload import Lengths
from dualpace.scheduling.cost import GpuWork, NodeCosts, chunk_pairs

_HALVINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Means of a workload."""

    prompt_tokens: float
    output_tokens: float
    context: float
    """KV tokens that a decode reads, and holds: mean over output tokens."""
    pairs: float
    """Query-key pairs of a prompt token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The best mixture found, and what it would make. Seconds, tokens, requests."""

    tokens_per_s: float
    requests_per_s: float
    device_rows: int
    host_rows: int
    prompt_rows: int
    """Prompt tokens an iteration of the device."""
    device_step_s: float
    host_step_s: float


def mix_of(lengths: Sequence[Lengths]) -> Mix:
    """Sum a workload up."""
    outputs = sum(item.output_tokens for item in lengths)
    prompts = sum(item.prompt_tokens for item in lengths)
    read = sum(i.output_tokens * (i.prompt_tokens + i.output_tokens / 2) for i in lengths)
    pairs = sum(chunk_pairs(0, item.prompt_tokens) for item in lengths)
    return Mix(
        prompt_tokens=prompts / len(lengths),
        output_tokens=outputs / len(lengths),
        context=read / outputs,
        pairs=pairs / prompts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What bounds a node: times, memory, and how long a gap between two tokens may be."""

    costs: NodeCosts
    device_tokens: int
    host_tokens: int
    itl_target_s: float
    token_budget: int = 2048
    weights_read: bool = False
    """Whether Dense Assist reads the weights once in every iteration of the host; else its rows
    ride in the device's own batch at every layer."""


def throughput(node: Resources, mix: Mix) -> Bound:
    """Return the highest token rate over all splits of the rows.

    The device takes as many rows as its memory holds, or fewer; the host as many as keep its
    target.
    """
    most = max(1, int(node.device_tokens / mix.context))
    device = sorted({max(1, most * part // 8) for part in range(1, 9)})
    found = [
        bound
        for rows in device
        for host_rows in _host_rows(node, mix)
        if (bound := _balanced(node, mix, rows, host_rows)) is not None
    ]
    return max(found, key=lambda bound: bound.tokens_per_s)


def ttft_p99_s(node: Resources, lengths: Sequence[Lengths]) -> float:
    """Return the 99th percentile of prefills that wait for nobody."""
    gpu = node.costs.gpu

    def alone_s(prompt: int) -> float:
        chunks = [
            (start, min(node.token_budget, prompt - start))
            for start in range(0, prompt, node.token_budget)
        ]
        return sum(
            gpu.step_s(GpuWork(n, start + n == prompt, 0, start, chunk_pairs(start, n)))
            for start, n in chunks
        )

    times = sorted(alone_s(item.prompt_tokens) for item in lengths)
    return times[int(0.99 * (len(times) - 1))]


def _host_rows(node: Resources, mix: Mix) -> list[int]:
    """Return numbers of rows, none and up to as many as memory holds and the target allows."""
    most = int(node.host_tokens / mix.context)
    while most > 0 and _host_step_s(node, mix, most) > node.itl_target_s:
        most -= 1
    return sorted({most * part // 24 for part in range(25)})


def _host_step_s(node: Resources, mix: Mix, rows: int) -> float:
    """Return the least time of an iteration: attention alone, or everything if that is less."""
    host, kv_tokens = node.costs.host, int(rows * mix.context)
    lent = host.step_overhead_s + host.num_layers * host.attention_layer_s(rows, kv_tokens)
    return min(lent, host.step_s(rows, kv_tokens))


@dataclass(frozen=True, slots=True)
class _Rates:
    """Requests a second that begin and that end; seconds of a step of the device."""

    begun: float
    ended: float
    step_s: float


def _rates(
    node: Resources, mix: Mix, rows: int, prompt_rows: int, host: tuple[int, float]
) -> _Rates:
    """`host`: its rows, and the share of the time that it works."""
    host_rows, busy = host
    step_s = _device_step_s(node, mix, rows, prompt_rows)
    taken = made = 0.0
    if host_rows:
        host_step_s = _host_step_s(node, mix, host_rows)
        taken = busy * _assist_s(node, rows + prompt_rows, host_rows) / host_step_s
        made = busy * host_rows / host_step_s
    steps = max(0.0, 1.0 - taken) / step_s
    begun = steps * prompt_rows / mix.prompt_tokens
    return _Rates(begun, (steps * rows + made) / mix.output_tokens, step_s)


def _balanced(node: Resources, mix: Mix, rows: int, host_rows: int) -> Bound | None:
    """Return the rate at which as many requests begin as end; None: a step takes too long.

    The more prompt tokens an iteration takes, the more requests begin, and the fewer end. If the
    largest chunks do not suffice, the host idles for a part of the time.
    """
    low, high = 0, node.token_budget - rows
    busy = 1.0
    found = _rates(node, mix, rows, high, (host_rows, busy))
    if found.begun < found.ended:
        least, most = 0.0, 1.0
        for _ in range(_HALVINGS):
            busy = (least + most) / 2
            found = _rates(node, mix, rows, high, (host_rows, busy))
            least, most = (busy, most) if found.begun >= found.ended else (least, busy)
    else:
        while high - low > 1:
            middle = (low + high) // 2
            found = _rates(node, mix, rows, middle, (host_rows, busy))
            low, high = (middle, high) if found.begun < found.ended else (low, middle)
        found = _rates(node, mix, rows, high, (host_rows, busy))
    if found.step_s > node.itl_target_s:
        return None
    # One prompt token more or less lies between beginning and ending.
    rate = max(found.ended, _rates(node, mix, rows, low, (host_rows, busy)).begun)
    rate = min(rate, found.begun)
    return Bound(
        tokens_per_s=rate * mix.output_tokens,
        requests_per_s=rate,
        device_rows=rows,
        host_rows=host_rows,
        prompt_rows=high,
        device_step_s=found.step_s,
        host_step_s=_host_step_s(node, mix, host_rows) if host_rows else 0.0,
    )


def _device_step_s(node: Resources, mix: Mix, rows: int, prompt_rows: int) -> float:
    pairs = int(prompt_rows * mix.pairs)
    work = GpuWork(rows + prompt_rows, rows, rows, int(rows * mix.context), pairs)
    return node.costs.gpu.step_s(work)


def _assist_s(node: Resources, own_rows: int, rows: int) -> float:
    """Return the GPU time that an iteration of the host takes."""
    gpu = node.costs.gpu
    if node.weights_read:
        return gpu.num_layers * gpu.dense_layer_s(rows) + gpu.head_s(rows)
    riding = gpu.dense_layer_s(own_rows + rows) - gpu.dense_layer_s(own_rows)
    return gpu.num_layers * riding
