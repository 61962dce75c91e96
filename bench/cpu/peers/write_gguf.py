"""Writes a Llama directory as GGUF files of several formats, without a vocabulary.

llama.cpp's batched benchmark feeds token ids and reads no text. Runs in llama.cpp's environment.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

FORMATS = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order a head's outputs as llama.cpp rotates them: pairs side by side, not halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_tensor(
    name: str, weight: np.ndarray, config: dict[str, Any]
) -> tuple[str, np.ndarray] | None:
    """Return the name and the rows in GGUF; None: not kept there."""
    if name in ENDS:
        return ENDS[name], weight
    if not name.startswith("model.layers."):
        return None
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part = rest.removesuffix(".weight")
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(NAMES[part])
    if heads is not None:
        weight = interleave(weight, config[heads])
    return f"blk.{layer}.{NAMES[part]}.weight", weight


def write(directory: Path, path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Write one file."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    with safe_open(directory / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            found = gguf_tensor(name, tensors.get_tensor(name).float().numpy(), config)
            if found is None:
                continue
            to, weight = found
            chosen = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else kind
            rows = gguf.quants.quantize(np.ascontiguousarray(weight), chosen)
            writer.add_tensor(to, rows, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write every format of the directory named first below the one named second."""
    directory, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name, kind in FORMATS.items():
        path = out / f"{name}.gguf"
        if not path.exists():
            partial = path.with_suffix(".partial")
            write(directory, partial, kind)
            partial.rename(path)


main()
