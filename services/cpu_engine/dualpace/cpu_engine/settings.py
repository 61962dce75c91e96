"""Settings of the cpu-engine."""

import os
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
    max_batch: int = setting("Most sequences that one iteration advances.", default=256)
    assist: str = setting(
        "Dense Assist: off; always while the gpu-engine offers it; alternate with local iterations"
        " (for tests).",
        default="off",
        choices=("off", "always", "alternate"),
    )
    assist_deadline_s: float = setting(
        "How long an assisted iteration may take before it is computed here.", default=0.5
    )
    threads: int = setting("Compute threads; 0 takes every allowed CPU.", default=0)
    attach_timeout_s: float = setting(
        "How long to wait for the gpu-engine to make the arena.", default=600.0
    )
    orphan_grace_s: float = setting(
        "How long to stay, with nothing to decode, once the gpu-engine has gone.", default=5.0
    )

    def __post_init__(self) -> None:
        require(self.max_batch > 0, "max_batch must be positive")
        require(self.orphan_grace_s >= 0, "orphan_grace_s must not be negative")
        require(self.assist_deadline_s > 0, "assist_deadline_s must be positive")
        require(self.threads >= 0, "threads must not be negative")
        require(Path(self.run_dir).is_dir(), f"run_dir: {self.run_dir} is not a directory")

    @property
    def num_threads(self) -> int:
        """Compute threads to use."""
        return self.threads or len(os.sched_getaffinity(0))
