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
        "Format that weights are packed in; auto takes the narrowest that changes no weight.",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    int8_group: int = setting(
        "Inputs that share a scale where weights are int8, a multiple of 16; 0: all of an output.",
        default=0,
    )
    max_batch: int = setting("Most sequences that one iteration advances.", default=256)
    threads: int = setting(
        "Compute threads; 0 takes one for each allowed core, less one where those are over two.",
        default=0,
    )
    pin: str = setting(
        "Ties compute threads to cores; auto does so where a core is left for everything else.",
        default="auto",
        choices=("auto", "on", "off"),
    )
    attach_timeout_s: float = setting(
        "How long to wait for the gpu-engine to make the arena.", default=600.0
    )
    orphan_grace_s: float = setting(
        "How long to stay, with nothing to decode, once the gpu-engine has gone.", default=5.0
    )

    def __post_init__(self) -> None:
        require(self.max_batch > 0, "max_batch must be positive")
        require(self.orphan_grace_s >= 0, "orphan_grace_s must not be negative")
        require(self.threads >= 0, "threads must not be negative")
        require(
            self.int8_group >= 0 and self.int8_group % 16 == 0,
            "int8_group must be 0 or a positive multiple of 16",
        )
        require(Path(self.run_dir).is_dir(), f"run_dir: {self.run_dir} is not a directory")
