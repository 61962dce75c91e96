"""Computes tiny_models.json: what transformers makes of the models of make_tiny_models.py.

    python make_tiny_gold.py --out DIR --tokenizer DIR --gold tiny_models.json

Needs torch and transformers, which the project itself does not use. fp32 on the CPU, eager
attention, one thread, a plain argmax loop in which the end token neither stops nor is suppressed.
Each model is also computed with one deliberate mistake, to show that its gold tells it from the
truth.
"""

import argparse
import importlib
import json
import os
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

_TINY = runpy.run_path(str(Path(__file__).with_name("make_tiny_models.py")))
MODELS: dict[str, dict[str, Any]] = _TINY["MODELS"]
PROMPTS = {
    "short_en": "The capital of France is",
    "code": "def add(a, b):\n    return a + b\n\nprint(add(2, 40))\n",
    "unicode": "Größe 中文 😀 naïve — ½",
    "long": "In the year 2024 a small ship left the harbour at dawn, carrying salt, rope, two "
    "goats and a crew of nine. "
    * 3
    + "The captain wrote in her log: day 1, wind 12 knots; day 2, wind 30 knots, one sail lost; "
    "day 3,",
}
NEW_TOKENS = 24
STEPS_WITH_TOP5 = 4
SHOWN_LOGITS = (0, 1, 100, 1000, 10000, 49151)
Model = Any


def zero_biases(model: Model) -> None:
    """Forget every bias."""
    for name, parameter in model.named_parameters():
        if name.endswith("_proj.bias"):
            parameter.data.zero_()


def drop_qk_norms(model: Model) -> None:
    """Forget the norms of query and key heads."""
    for layer in model.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()


Mistake = tuple[str, dict[str, Any], Callable[[Model], None] | None]
MISTAKES: dict[str, Mistake] = {
    "llama3_rope": ("plain rope (scaling ignored)", {"rope_scaling": None}, None),
    "llama_v5cfg_bias": ("biases ignored", {}, zero_biases),
    "qwen2": ("qkv bias ignored", {}, zero_biases),
    "qwen3": ("q/k norm ignored", {}, drop_qk_norms),
    "mistral": ("sliding window ignored", {"sliding_window": None}, None),
    "phi3": ("rope_theta 20000 for 10000", {"rope_theta": 20000.0}, None),
    "phi3_longrope": ("longrope factors ignored", {"rope_scaling": None}, None),
    "qwen2_yarn_window": ("sliding window ignored", {"use_sliding_window": False}, None),
    "mixtral": ("top-1 instead of top-2", {"num_experts_per_tok": 1}, None),
    "qwen3_moe": ("top-k probabilities not renormalised", {"norm_topk_prob": False}, None),
    "gemma3": ("sliding window ignored", {"sliding_window": 1024}, None),
}


def load(directory: Path, transformers: Any) -> Model:
    """Load a model in fp32; every stored tensor must be used and none be missing."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    problems = {key: value for key, value in report.items() if value}
    assert not problems, (directory, problems)
    return model.eval()


@torch.no_grad()
def greedy(model: Model, prompt: list[int]) -> tuple[dict[str, Any], Tensor]:
    """Return the gold of one prompt, and the log-probabilities after its last token."""
    tokens = torch.tensor([prompt])
    ids: list[int] = []
    top5: list[list[list[float]]] = []
    margins: list[float] = []
    cache, first = None, torch.empty(0)
    for step in range(NEW_TOKENS):
        result = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1].float()
        first = logits if step == 0 else first
        values, best = torch.log_softmax(logits, -1).topk(5)
        if step < STEPS_WITH_TOP5:
            top5.append([[int(i), round(float(v), 6)] for i, v in zip(best, values, strict=True)])
        margins.append(round(float(values[0] - values[1]), 5))
        ids.append(int(best[0]))
        tokens = torch.tensor([[ids[-1]]])
    full = model(input_ids=torch.tensor([prompt + ids[:-1]]), use_cache=False).logits[0]
    gold = {
        "n_prompt": len(prompt),
        "greedy_ids": ids,
        "top5_logprobs_first4": top5,
        "min_margin": min(margins),
        "margins": margins,
        "full_forward_argmax_agrees": full[len(prompt) - 1 :].argmax(-1).tolist() == ids,
        "last_prompt_logits": {str(i): round(float(first[i]), 5) for i in SHOWN_LOGITS},
        "last_prompt_logsumexp": round(float(torch.logsumexp(first, -1)), 5),
    }
    return gold, torch.log_softmax(first, -1)


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Return the first step at which two lists differ."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def mistaken(name: str, directory: Path, scratch: Path, transformers: Any) -> tuple[str, Model]:
    """Return the description of a model's mistake, and the model that makes it."""
    what, edit_config, edit_model = MISTAKES[name]
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    os.link(directory / "model.safetensors", scratch / "model.safetensors")
    (scratch / "config.json").write_text(json.dumps(MODELS[name] | edit_config))
    model = load(scratch, transformers)
    if edit_model is not None:
        edit_model(model)
    shutil.rmtree(scratch)
    return what, model


def model_gold(
    name: str, ids: dict[str, list[int]], out: Path, tokenizer: Path, transformers: Any
) -> dict[str, Any]:
    """Build a model and return its gold."""
    directory, digest = _TINY["build"](name, out, tokenizer)
    model = load(directory, transformers)
    what, wrong_model = mistaken(name, directory, out / "_mistake", transformers)
    prompts: dict[str, Any] = {}
    caught: dict[str, Any] = {}
    in_bfloat16: dict[str, int | None] = {}
    for key, prompt in ids.items():
        prompts[key], truth = greedy(model, prompt)
        wrong, wrong_logprobs = greedy(wrong_model, prompt)
        best = truth.topk(5).indices
        change = (truth[best] - wrong_logprobs[best]).abs().max()
        caught[key] = {
            "first_diff": first_difference(wrong["greedy_ids"], prompts[key]["greedy_ids"]),
            "max_top5_logprob_change_at_last_prompt_token": round(float(change), 4),
        }
    parameters = sum(p.numel() for p in model.parameters())
    model = model.bfloat16()
    for key, prompt in ids.items():
        coarse, _ = greedy(model, prompt)
        in_bfloat16[key] = first_difference(coarse["greedy_ids"], prompts[key]["greedy_ids"])
    return {
        "sha256_model_safetensors": digest,
        "architecture": MODELS[name]["architectures"][0],
        "parameters": parameters,
        "config": MODELS[name],
        "prompts": prompts,
        "mistake_check": {"mistake": what, "prompts": caught},
        "bf16_compute_first_diff": in_bfloat16,
    }


def main() -> None:
    """Write the gold of every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where models are built")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--gold", type=Path, required=True)
    arguments = parser.parse_args()
    transformers = importlib.import_module("transformers")
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    ids = {k: tokenizer.encode(text, add_special_tokens=False).ids for k, text in PROMPTS.items()}
    gold = {
        "reference": f"transformers {transformers.__version__}, torch {torch.__version__}, CPU, "
        "fp32, eager attention, 1 thread",
        "semantics": "argmax loop, EOS neither stops nor is suppressed; no BOS added; weights are "
        "bf16-exact, computed in fp32",
        "prompt_texts": PROMPTS,
        "prompt_token_ids": ids,
        "new_tokens": NEW_TOKENS,
        "models": {
            name: model_gold(name, ids, arguments.out, arguments.tokenizer, transformers)
            for name in MODELS
        },
    }
    arguments.gold.write_text(json.dumps(gold, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
