"""Tells how far narrower formats are from float32: same model, same text, token by token.

Windows of real text are fed to two engines in step, each with a KV cache of its own format, so that
rounding adds up over a window as it does in service. Printed of each format: how often the most
likely token is float32's, the mean Kullback-Leibler divergence from float32's distribution (nats),
the 99th percentile of it, and the perplexity of the text, float32's beside it. The last line is
JSON. How bfloat16 is computed depends on the instruction set, which is said too.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualpace.checkpoint import Checkpoint, fetch_demo_model, open_checkpoint
from dualpace.kernels import capabilities
from dualpace.models import KvPool, load_decoder
from dualpace.models.host_attention import host_attention
from dualpace.models.host_linear import host_linear
from dualpace.models.host_step import DecodeBatch, HostStep, host_step

BLOCK_SIZE = 16
FORMATS = {
    "float32": (torch.float32, "float32", 0),
    "bfloat16": (torch.bfloat16, "bfloat16", 0),
    "bfloat16, int16 weights": (torch.bfloat16, "int16", 0),
    "float16": (torch.float16, "float16", 0),
    "float32, bfloat16 weights": (torch.float32, "bfloat16", 0),
    "float32, int16 weights": (torch.float32, "int16", 0),
    "int8": (torch.float32, "int8", 0),
    "bfloat16, int8 weights": (torch.bfloat16, "int8", 0),
    "int8, groups of 64": (torch.float32, "int8", 64),
}
"""Model and KV dtype, format that weights are packed in, inputs that share a scale in int8."""


@dataclass(frozen=True)
class Divergence:
    """Of one format from float32, over all predictions."""

    format: str
    predictions: int
    top1_agreement: float
    mean_kl_nats: float
    p99_kl_nats: float
    perplexity: float
    perplexity_float32: float


def make_step(checkpoint: Checkpoint, format_: str, shape: tuple[int, int]) -> HostStep:
    """Return a decode step with KV for windows of `shape`, [count, tokens]."""
    count, tokens = shape
    threads = len(os.sched_getaffinity(0))
    dtype, weights, group = FORMATS[format_]
    decoder = load_decoder(
        checkpoint,
        dtype=dtype,
        device=torch.device("cpu"),
        linear=host_linear(threads, weights=weights, int8_group=group),
    )
    width = -(-tokens // BLOCK_SIZE)
    pool = KvPool.allocate(
        decoder.config, count * width, BLOCK_SIZE, dtype=dtype, device=decoder.device
    )
    tables = np.arange(count * width, dtype=np.int32).reshape(count, width)
    return host_step(decoder, pool, tables, host_attention(threads), num_threads=threads)


def windows_of(checkpoint: Checkpoint, texts: list[Path], shape: tuple[int, int]) -> Tensor:
    """Return the first [count, tokens] token ids of the texts."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in texts)
    ids = checkpoint.tokenizer().tokenizer.encode(text, add_special_tokens=False).ids
    needed = shape[0] * shape[1]
    if len(ids) < needed:
        raise SystemExit(f"the texts have {len(ids)} tokens, {needed} are needed")
    return torch.tensor(ids[:needed]).view(shape)


def log_probabilities(
    step: HostStep, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.int32], length: int
) -> Tensor:
    """Return [count, vocab] after a token at position length - 1 of each window."""
    lengths = np.full(len(rows), length, dtype=np.int32)
    logits = step(DecodeBatch(token_ids=ids, rows=rows, lengths=lengths))
    return logits.values.double().log_softmax(-1)


def compare(checkpoint: Checkpoint, format_: str, windows: Tensor) -> Divergence:
    """Feed the windows to float32 and to one format."""
    count, tokens = windows.shape
    steps = [make_step(checkpoint, name, (count, tokens)) for name in ("float32", format_)]
    rows = np.arange(count, dtype=np.int32)
    agreed, divergences, likelihoods = 0, [], torch.zeros(2, dtype=torch.float64)
    for position in range(tokens - 1):
        ids = windows[:, position].contiguous().numpy()
        exact, narrow = (log_probabilities(step, ids, rows, position + 1) for step in steps)
        agreed += int((exact.argmax(-1) == narrow.argmax(-1)).sum())
        divergences.append((exact.exp() * (exact - narrow)).sum(-1))
        following = windows[:, position + 1, None]
        likelihoods += torch.stack([p.gather(1, following).sum() for p in (exact, narrow)])
    every = torch.cat(divergences)
    perplexities = (-likelihoods / len(every)).exp()
    return Divergence(
        format=format_,
        predictions=len(every),
        top1_agreement=agreed / len(every),
        mean_kl_nats=float(every.mean()),
        p99_kl_nats=float(every.quantile(0.99)),
        perplexity=float(perplexities[1]),
        perplexity_float32=float(perplexities[0]),
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    docs = Path(__file__).parents[2] / "docs"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="default: the demo model")
    parser.add_argument("--text", type=Path, nargs="+", default=sorted(docs.glob("*.md")))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS)[1:], choices=FORMATS)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of a window")
    return parser.parse_args()


def main() -> None:
    """Print a line for each format, and one of JSON."""
    arguments = parse_arguments()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    checkpoint = open_checkpoint(arguments.model or fetch_demo_model())
    windows = windows_of(checkpoint, arguments.text, (arguments.windows, arguments.tokens))
    found = []
    for format_ in arguments.formats:
        one = compare(checkpoint, format_, windows)
        found.append(one)
        print(
            f"{one.format:>25}: top-1 {one.top1_agreement:.4f}, KL {one.mean_kl_nats:.2e} "
            f"(p99 {one.p99_kl_nats:.2e}), perplexity {one.perplexity:.3f} "
            f"(float32 {one.perplexity_float32:.3f})",
            flush=True,
        )
    record = {"kind": "measured", "isa": capabilities().isa, "formats": [*map(asdict, found)]}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
