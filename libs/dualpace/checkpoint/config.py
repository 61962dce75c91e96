"""What a decoder-only model is: all that the decoder must know, and nothing of files.

Readers of Hugging Face directories and of GGUF files both produce a `ModelConfig`; the decoder
knows no other description. Per-layer differences (sliding window, rope, mixture of experts) are
stated layer by layer.
"""

import enum
from dataclasses import dataclass

MAX_CONTEXT = 1 << 25
MAX_LAYERS = 4096
"""Like MAX_CONTEXT far above any model: a greater number is a damaged file."""


class Family(enum.StrEnum):
    """Model families, named as Hugging Face's `model_type`.

    A family fixes the names of its tensors.
    """

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    PHI3 = "phi3"
    MIXTRAL = "mixtral"
    QWEN3_MOE = "qwen3_moe"
    GEMMA3 = "gemma3_text"


class Activation(enum.StrEnum):
    """The gate's non-linearity."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between them."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp between interpolated and kept frequencies."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float
    """Multiplies cosine and sine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyFactors:
    """One divisor for each frequency: LongRoPE's short factors, or those of a GGUF file."""

    factors: tuple[float, ...]
    """rotary_dim / 2 numbers."""
    attention_factor: float = 1.0
    """Multiplies cosine and sine."""


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FrequencyFactors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of a layer; dimension i is paired with i + rotary_dim / 2."""

    theta: float
    rotary_dim: int
    """Leading dimensions of a head that are rotated; even, at most head_dim."""
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What may differ from layer to layer."""

    rope: RopeConfig
    window: int | None = None
    """Key j is seen from query i iff i - window < j <= i; None: every earlier key."""
    sparse: bool = False
    """The feed-forward part is a mixture of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Mixture of experts: router softmax over all experts in fp32, then the best `top_k`."""

    num_experts: int
    top_k: int
    intermediate_size: int
    """Of each expert."""
    renormalise: bool
    """Weights of the chosen experts are divided by their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Sizes are counts of elements unless said otherwise."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of a dense feed-forward layer."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    context_length: int
    """Most positions that the model was made for."""
    tied_embeddings: bool
    """The output head is the embedding matrix."""
    activation: Activation = Activation.SILU
    attention_scale: float
    """Multiplies query-key products."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Of the attention output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Query and key heads are RMS-normalised, each with a weight of head_dim, before rope."""
    norm_offset: bool = False
    """Gemma: norms multiply by 1 + weight, in fp32."""
    sandwich_norms: bool = False
    """Gemma: attention and feed-forward outputs are normalised before they are added."""
    embedding_scale: float = 1.0
    moe: MoeConfig | None = None
    weights_dtype: str = "float32"
    """In what the weights come, or what a quantised file is best computed in: float32, bfloat16
    or float16."""

    @property
    def num_layers(self) -> int:
        """Number of transformer layers."""
        return len(self.layers)

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Return the bytes of keys and values that one token occupies over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes
