"""Settings of `dualpace serve`: those a person wants at hand; the services have more."""

import re
from dataclasses import dataclass

from dualpace.core.settings import require, setting
from dualpace.scheduling.placement import placement_from_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Serve a model on this machine, decoded by two engines at once."""

    model: str = setting(
        "Model directory, GGUF file, hub id (org/name[@revision]), or demo.", default="demo"
    )
    host: str = setting("Address to listen on.", default="127.0.0.1")
    port: int = setting("TCP port to listen on; 0 takes a free one.", default=8000)
    served_model_name: str | None = setting(
        "Names that clients may use, separated by commas; unset: the model's own.", default=None
    )
    device: str = setting(
        "Device of the gpu-engine: cpu, cuda, cuda:<index> or emulated:<profile or preset>.",
        default="cpu",
    )
    dtype: str = setting(
        "Data type; auto is float32 on a CPU and the model's own on CUDA.",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    placement: str = setting(
        "Where requests decode: auto, gpu, cpu, or random:<seed> (for tests).", default="auto"
    )
    assist: str = setting(
        "Dense Assist, the gpu-engine computing dense stages of the cpu-engine's batches: auto, "
        "off, always, alternate.",
        default="auto",
        choices=("auto", "off", "always", "alternate"),
    )
    profile: str | None = setting(
        "File with the node's profile, which decides over Dense Assist.", default=None
    )
    device_kv_mib: int = setting("KV memory of the gpu-engine; 0: its default.", default=0)
    arena_mib: int = setting("Host memory for KV of the cpu-engine.", default=1024)
    host_slots: int = setting("Most sequences on the host at once.", default=256)
    max_model_len: int | None = setting(
        "Most tokens of a request; unset: what model and memory allow.", default=None
    )
    max_running: int = setting(
        "Most sequences on the device at once; 0: the gpu-engine's default.", default=0
    )
    token_budget: int = setting("Most tokens of a gpu-engine iteration; 0: its default.", default=0)
    pinning: str = setting(
        "Whether to pin every thread to cores of a plan; auto: where a GPU serves.",
        default="auto",
        choices=("auto", "on", "off"),
    )
    shm_dir: str = setting("Shared-memory file system for the arena.", default="/dev/shm")  # noqa: S108
    drain_grace_s: float = setting("How long running requests may finish on stop.", default=5.0)
    max_restarts: int = setting(
        "How often an engine that dies is started again within five minutes; the node stops when"
        " it dies once more.",
        default=5,
    )
    log_level: str = setting(
        "Least severe level that the services log.",
        default="info",
        choices=("debug", "info", "warning", "error"),
    )
    log_json: bool = setting("Log one JSON object a line.", default=False)
    lifeline_fd: int | None = setting(
        "File descriptor of a pipe whose closing stops the node: for programs that start one.",
        default=None,
    )

    def __post_init__(self) -> None:
        require(0 <= self.port < 1 << 16, f"port: {self.port} is not in 0..65535")
        require(self.drain_grace_s >= 0, "drain_grace_s must not be negative")
        require(self.max_restarts >= 0, "max_restarts must not be negative")
        placement_from_text(self.placement)
        require(
            re.fullmatch(r"cpu|cuda(:\d+)?|emulated:.+", self.device) is not None,
            f"device: {self.device!r} is not cpu, cuda, cuda:<index> or emulated:<what>",
        )
