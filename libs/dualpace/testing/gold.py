"""Gold outputs of the reference implementation, and the models they belong to, for tests.

Data and its meaning: tests/gold/README.md. Tiny models are built once into the user's cache folder;
the demo model is fetched there.
"""

import json
import runpy
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dualpace.checkpoint import TokenizerAssets, fetch_demo_model, open_checkpoint
from dualpace.checkpoint.demo import default_cache_dir

GOLD_DIR = Path(__file__).parents[3] / "tests" / "gold"
TOLERANCE = 1e-3
"""Of log-probabilities in fp32; steps whose margin is smaller may choose another token."""


@dataclass(frozen=True, slots=True)
class GoldPrompt:
    """One prompt, and what the reference generates from it."""

    name: str
    text: str
    messages: tuple[dict[str, str], ...] | None
    """Chat messages that the model's template turns into `text`; None for a raw prompt."""
    token_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    """For each of the first steps the five most likely tokens, falling."""
    margins: tuple[float, ...]
    """For each step how far the best token is ahead of the next, in log-probability."""

    def first_wrong_step(self, ids: list[int]) -> int | None:
        """Return the first step at which generated ids differ though they must not, or None.

        After a step at which ids may and do differ (margin below the tolerance) nothing counts.
        """
        for step, (token, gold) in enumerate(zip(ids, self.greedy_ids, strict=False)):
            if token != gold:
                return step if self.margins[step] >= TOLERANCE else None
        return None


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """A tensor after loading, as the reference has it."""

    shape: tuple[int, ...]
    sha256: str
    """Of its values as little-endian float32."""


@cache
def smollm2_prompts() -> tuple[GoldPrompt, ...]:
    """Return the gold of the demo model."""
    data = _load("smollm2_greedy.json")
    return tuple(
        GoldPrompt(
            name=entry["id"],
            text=entry["prompt"],
            messages=None if entry["messages"] is None else tuple(entry["messages"]),
            token_ids=tuple(entry["prompt_token_ids"]),
            greedy_ids=tuple(entry["greedy_ids"]),
            top_logprobs=_top(entry["top5_logprobs_first4"]),
            margins=tuple(entry["top1_top2_margin"]),
        )
        for entry in data["prompts"]
    )


@cache
def smollm2_tensor_checks() -> dict[str, TensorCheck]:
    """Return checks of the demo model's tensors, by Hugging Face name."""
    checks = _load("smollm2_greedy.json")["tensor_checks"]
    return {
        name: TensorCheck(tuple(check["shape"]), check["sha256_fp32_le"])
        for name, check in checks.items()
    }


@cache
def tiny_prompts(model: str) -> tuple[GoldPrompt, ...]:
    """Return the gold of a tiny model."""
    data = _load("tiny_models.json")
    return tuple(
        GoldPrompt(
            name=name,
            text=data["prompt_texts"][name],
            messages=None,
            token_ids=tuple(data["prompt_token_ids"][name]),
            greedy_ids=tuple(entry["greedy_ids"]),
            top_logprobs=_top(entry["top5_logprobs_first4"]),
            margins=tuple(entry["margins"]),
        )
        for name, entry in data["models"][model]["prompts"].items()
    )


def tiny_model_names() -> tuple[str, ...]:
    """Return the names of the tiny models."""
    return tuple(_load("tiny_models.json")["models"])


@cache
def tiny_model(model: str) -> Path:
    """Return the directory of a tiny model, with the demo model's tokenizer; built if need be.

    Any number of processes may call this at once. Raises RuntimeError if the bytes are not the
    gold's.
    """
    root = default_cache_dir() / "tiny"
    wanted = _load("tiny_models.json")["models"][model]["sha256_model_safetensors"]
    target = root / f"{model}-{wanted[:16]}"
    if target.is_dir():
        return target
    root.mkdir(parents=True, exist_ok=True)
    build = runpy.run_path(str(GOLD_DIR / "make_tiny_models.py"))["build"]
    with tempfile.TemporaryDirectory(dir=root, prefix=".building-") as folder:
        tokenizer = Path(folder) / "tokenizer"
        write_tokenizer(open_checkpoint(fetch_demo_model()).tokenizer(), tokenizer)
        directory, digest = build(model, Path(folder), tokenizer)
        if digest != wanted:
            raise RuntimeError(f"{model}: weights were built with sha256 {digest}, not {wanted}")
        try:
            directory.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster
                raise
    return target


def write_tokenizer(assets: TokenizerAssets, directory: Path) -> None:
    """Write a tokenizer as the files of a Hugging Face directory."""
    directory.mkdir(parents=True)
    assets.tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": assets.bos_token,
        "eos_token": assets.eos_token,
        "pad_token": assets.pad_token,
        "chat_template": assets.chat_template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def _top(steps: list[list[list[float]]]) -> tuple[tuple[tuple[int, float], ...], ...]:
    return tuple(tuple((int(token), value) for token, value in step) for step in steps)


@cache
def _load(file: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLD_DIR / file).read_text(encoding="utf-8"))
    return data
