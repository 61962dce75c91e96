"""Writes tiny random-weight model directories, one per architecture, equal on every machine.

    python make_tiny_models.py --out DIR [--tokenizer DIR] [--only NAME ...]

Needs numpy alone; safetensors files are written by hand. Weights come from PCG64, seeded by the
tensor's name, are scaled so that attention, biases, norms and routing all matter, and are rounded
to bfloat16, so that fp32 and bf16 loaders see the same numbers. tiny_configs.json holds the
configs, tiny_models.json the sha256 of each file and what the reference computes from it.
"""

import argparse
import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCAB = 49152
"""SmolLM2's."""
Config = dict[str, Any]
MODELS: dict[str, Config] = json.loads(Path(__file__).with_name("tiny_configs.json").read_text())


def tensor_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model, by name."""
    hidden = c["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, hidden),
        "model.norm.weight": (hidden,),
    }
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, hidden)
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        if c["model_type"] == "gemma3_text":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        shapes |= {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
        shapes |= {f"{prefix}self_attn.{k}": v for k, v in attention_shapes(c).items()}
        shapes |= {f"{prefix}{k}": v for k, v in feed_forward_shapes(c, layer).items()}
    return shapes


def attention_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Return shapes of a layer's attention part."""
    hidden, heads, kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head_dim, kind = c.get("head_dim", hidden // heads), c["model_type"]
    shapes: dict[str, tuple[int, ...]] = {"o_proj.weight": (hidden, heads * head_dim)}
    if kind == "phi3":
        shapes["qkv_proj.weight"] = ((heads + 2 * kv_heads) * head_dim, hidden)
    else:
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes[f"{name}_proj.weight"] = (count * head_dim, hidden)
            if kind == "qwen2" or c.get("attention_bias", False):
                shapes[f"{name}_proj.bias"] = (count * head_dim,)
    if kind == "llama" and c.get("attention_bias", False):
        shapes["o_proj.bias"] = (hidden,)
    if kind in {"qwen3", "qwen3_moe", "gemma3_text"}:
        shapes["q_norm.weight"] = shapes["k_norm.weight"] = (head_dim,)
    return shapes


def feed_forward_shapes(c: Config, layer: int) -> dict[str, tuple[int, ...]]:
    """Return shapes of a layer's feed-forward part."""
    hidden, inner, kind = c["hidden_size"], c["intermediate_size"], c["model_type"]
    if kind == "mixtral":
        block, count, names = "block_sparse_moe", c["num_local_experts"], ("w1", "w3", "w2")
    elif kind == "qwen3_moe" and layer not in c["mlp_only_layers"]:
        block, count, names = "mlp", c["num_experts"], ("gate_proj", "up_proj", "down_proj")
        inner = c["moe_intermediate_size"]
    elif kind == "phi3":
        return {
            "mlp.gate_up_proj.weight": (2 * inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
    else:
        shapes: dict[str, tuple[int, ...]] = {}
        for name in ("gate", "up", "down"):
            shape = (hidden, inner) if name == "down" else (inner, hidden)
            shapes[f"mlp.{name}_proj.weight"] = shape
            if c.get("mlp_bias"):
                shapes[f"mlp.{name}_proj.bias"] = shape[:1]
        return shapes
    gate, up, down = names
    shapes = {f"{block}.gate.weight": (count, hidden)}
    for expert in range(count):
        prefix = f"{block}.experts.{expert}."
        shapes[f"{prefix}{gate}.weight"] = shapes[f"{prefix}{up}.weight"] = (inner, hidden)
        shapes[f"{prefix}{down}.weight"] = (hidden, inner)
    return shapes


def tensor_values(model: str, c: Config, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a tensor's values, float32."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(f"{model}/{name}".encode())))
    x: NDArray[np.float32] = generator.standard_normal(shape, dtype=np.float32)
    gemma = c["model_type"] == "gemma3_text"
    if gemma and name == "model.norm.weight":  # large, because the embeddings below are small
        return 5.0 + 0.25 * x
    if "norm" in name:
        return (0.0 if gemma else 1.0) + 0.25 * x
    if name.endswith(".bias"):
        return 0.5 * x
    if name == "model.embed_tokens.weight":
        tied_gain = (0.5 if gemma else 3.0) / c["hidden_size"] ** 0.5
        return x * (tied_gain if c["tie_word_embeddings"] else 1.0)
    gain = 1.0
    if name == "lm_head.weight":
        gain = 3.0
    elif name.endswith(".gate.weight"):
        gain = 2.0
    elif any(part in name for part in ("q_proj", "k_proj", "qkv_proj")):
        gain = 1.3
    scaled: NDArray[np.float32] = x * (gain / shape[1] ** 0.5)
    return scaled


def bfloat16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even and return the upper halves."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Iterator[tuple[str, NDArray[np.float32]]]) -> None:
    """Write tensors as bfloat16, in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name, values in tensors:
        blob = bfloat16_bits(values).tobytes()
        end = offset + len(blob)
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, end]}
        blobs.append(blob)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)


def build(name: str, out: Path, tokenizer: Path | None = None) -> tuple[Path, str]:
    """Write one model under `out`; return its directory and the sha256 of its weights file."""
    config = MODELS[name]
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    weights = directory / "model.safetensors"
    shapes = sorted(tensor_shapes(config).items())
    write_safetensors(weights, ((n, tensor_values(name, config, n, s)) for n, s in shapes))
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    if tokenizer is not None:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / file, directory)
    return directory, hashlib.sha256(weights.read_bytes()).hexdigest()


def main() -> None:
    """Build the models named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="directory with tokenizer files to copy in")
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    arguments = parser.parse_args()
    for name in arguments.only:
        directory, digest = build(name, arguments.out, arguments.tokenizer)
        print(name, (directory / "model.safetensors").stat().st_size, digest)


if __name__ == "__main__":
    main()
