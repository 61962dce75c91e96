"""Reads what a model is from disk: its config, tensors, tokenizer and generation defaults.

No torch here, ever.
"""

from dualpace.checkpoint.checkpoint import Checkpoint, TensorInfo, float32_values
from dualpace.checkpoint.config import (
    Activation,
    Family,
    FrequencyFactors,
    LayerConfig,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    MoeConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from dualpace.checkpoint.demo import fetch_demo_model
from dualpace.checkpoint.generation import GenerationDefaults, end_token_ids
from dualpace.checkpoint.opening import open_checkpoint
from dualpace.checkpoint.source import resolve_model
from dualpace.checkpoint.tokenizer import TokenizerAssets

__all__ = [
    "Activation",
    "Checkpoint",
    "Family",
    "FrequencyFactors",
    "GenerationDefaults",
    "LayerConfig",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "MoeConfig",
    "RopeConfig",
    "RopeScaling",
    "TensorInfo",
    "TokenizerAssets",
    "YarnScaling",
    "end_token_ids",
    "fetch_demo_model",
    "float32_values",
    "open_checkpoint",
    "resolve_model",
]
