"""Writes the benchmark's models as Hugging Face directories: for peers that read nothing else.

`demo` is the demo model, dequantised; `random-1b` a Llama of about 1 B parameters with random
weights, whose tokens mean nothing and cost the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dualpace.checkpoint import Checkpoint, ModelConfig, fetch_demo_model, open_checkpoint

RANDOM_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def config_json(sizes: dict[str, Any], dtype: str) -> str:
    """Return config.json of a Llama of these sizes."""
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return json.dumps(kind | ids | sizes | {"dtype": dtype, "torch_dtype": dtype}, indent=1)


def llama_sizes(config: ModelConfig) -> dict[str, Any]:
    """Return the sizes of a loaded config."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.layers[0].rope.theta,
        "tie_word_embeddings": config.tied_embeddings,
    }


def demo_tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return every tensor in float32."""
    return {
        name: torch.from_numpy(checkpoint.read(name).copy()).float()
        for name in checkpoint.tensor_infos()
    }


def random_tensors(sizes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return weights of plausible size in bfloat16."""
    torch.manual_seed(0)
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    kv = sizes["num_key_value_heads"] * sizes["head_dim"]

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=torch.bfloat16).normal_(std=columns**-0.5)

    tensors = {
        "model.embed_tokens.weight": matrix(sizes["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for layer in range(sizes["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weight = torch.ones(hidden, dtype=torch.bfloat16)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight
    return tensors


def main() -> None:
    """Write the model named first into the directory named second, unless it is there."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    if (directory / "config.json").exists():
        return
    checkpoint = open_checkpoint(fetch_demo_model())
    if name == "demo":
        sizes, dtype, tensors = llama_sizes(checkpoint.config), "float32", demo_tensors(checkpoint)
    elif name == "random-1b":
        sizes, dtype, tensors = RANDOM_1B, "bfloat16", random_tensors(RANDOM_1B)
    else:
        sys.exit(f"{name!r} is not one of demo, random-1b")
    directory.mkdir(parents=True, exist_ok=True)
    # Exporters want one, though every figure is measured on token ids.
    checkpoint.tokenizer().tokenizer.save(str(directory / "tokenizer.json"))
    kind = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    (directory / "tokenizer_config.json").write_text(kind, encoding="utf-8")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(config_json(sizes, dtype), encoding="utf-8")


if __name__ == "__main__":
    main()
