"""Settings of the cpu-engine."""

from dataclasses import dataclass
from pathlib import Path

from dualpace.core.service import ServiceSettings
from dualpace.core.settings import require, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuEngineSettings(ServiceSettings):
    """The host's decode engine.

    Decodes requests whose KV cache lives in the shared-memory arena.
    """

    model: str = setting("Model directory or GGUF file.")
    run_dir: str = setting("Directory, in shared memory, of the arena and of the engines' sockets.")
    dtype: str = setting(
        "Data type of weights and activations; auto takes the arena's, and waits for it.",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    weights: str = setting(
        "Format that weights are packed in; auto: the narrowest that changes no weight, or int16"
        " where a bfloat16 model is faster in that arithmetic.",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16", "int8", "int16"),
    )
    int8_group: int = setting(
        "Inputs that share a scale where weights are int8, a multiple of 16; 0: all of an output.",
        default=0,
    )
    head_screen: str = setting(
        "Finding greedy tokens by the output head in int16 (half of its size in float32 once more),"
        " with the same outcome: auto, where that is faster; off.",
        default="auto",
        choices=("auto", "off"),
    )
    rows_in_turns: str = setting(
        "Two groups of a large batch taking turns, so that one's keys and values are read while the"
        " other is multiplied, with the same outcome: auto, from so many rows on as this machine is"
        " measured to gain by; off.",
        default="auto",
        choices=("auto", "off"),
    )
    backend: str = setting(
        "What multiplies and attends: the native kernels, or intel-extension-for-pytorch 2.8 beside"
        " torch 2.8, which has reached its end of life.",
        default="native",
        choices=("native", "ipex"),
    )
    max_batch: int = setting("Most sequences that one iteration advances.", default=256)
    profile: str | None = setting(
        "File with the node's profile, by which batches are routed; watched for changes.",
        default=None,
    )
    itl_target_ms: float | None = setting(
        "Time between two tokens that is to be kept by taking no more requests than that allows;"
        " needs a profile.",
        default=None,
    )
    assist: str = setting(
        "Dense Assist: auto lets the profile decide, and is off without one; always while the"
        " gpu-engine offers it; alternate with local iterations (for tests); off.",
        default="auto",
        choices=("auto", "off", "always", "alternate"),
    )
    assist_deadline_s: float = setting(
        "How long an assisted iteration may take before it is computed here.", default=0.5
    )
    lockstep: bool = setting(
        "Keep step with the gpu-engine's iterations: for measuring what that costs.", default=False
    )
    iteration_log: str | None = setting(
        "File for a line of JSON for each iteration: when, and what it held; for measurements.",
        default=None,
    )
    threads: int = setting(
        "Compute threads; 0 takes one for each CPU that `cores` gives to compute, or, if that is"
        " off, for each allowed core, less one where those are over two.",
        default=0,
    )
    attach_timeout_s: float = setting(
        "How long to wait for the gpu-engine to make the arena.", default=600.0
    )
    orphan_grace_s: float = setting(
        "How long to stay, with nothing to decode, once the gpu-engine has gone: one that comes"
        " back with other sizes can only make its arena when this one is let go of.",
        default=600.0,
    )

    def __post_init__(self) -> None:
        require(self.max_batch > 0, "max_batch must be positive")
        require(
            self.backend == "native" or self.weights == "auto",
            f"weights: {self.backend} packs weights as they are; leave it at auto",
        )
        require(self.orphan_grace_s >= 0, "orphan_grace_s must not be negative")
        require(
            self.profile is not None or self.itl_target_ms is None,
            "itl_target_ms needs a profile",
        )
        require(
            self.profile is None or self.assist in ("auto", "off"),
            f"assist: {self.assist} leaves nothing for a profile to decide; leave one out",
        )
        require(self.assist_deadline_s > 0, "assist_deadline_s must be positive")
        require(self.threads >= 0, "threads must not be negative")
        require(
            self.int8_group >= 0 and self.int8_group % 16 == 0,
            "int8_group must be 0 or a positive multiple of 16",
        )
        require(Path(self.run_dir).is_dir(), f"run_dir: {self.run_dir} is not a directory")
