"""Settings of the gpu-engine."""

import os
from dataclasses import dataclass
from pathlib import Path

from dualpace.core.service import ServiceSettings
from dualpace.core.settings import require, setting
from dualpace.scheduling.placement import placement_from_text


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEngineSettings(ServiceSettings):
    """The device's engine: all prefills, device-resident decodes, and the placement of requests."""

    model: str = setting("Model directory or GGUF file.")
    run_dir: str = setting("Directory, in shared memory, of the arena and of the engines' sockets.")
    device: str = setting(
        "cpu, cuda, cuda:<index>, or emulated:<profile's file or preset GPU> (for measurements).",
        default="cpu",
    )
    dtype: str = setting(
        "Data type of weights, activations and KV; auto is float32 on a CPU, and on CUDA that of"
        " the model's files.",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    placement: str = setting(
        "Where requests decode: auto, gpu, cpu, or random:<seed> (for tests).", default="auto"
    )
    block_size: int = setting("Tokens a KV block; a multiple of 16.", default=16)
    device_kv_mib: int = setting(
        "KV memory on the device; 0 takes what is free (CUDA) or 512 MiB (CPU).", default=0
    )
    arena_mib: int = setting("Host memory of the arena, KV of the cpu-engine.", default=1024)
    arena_timeout_s: float = setting(
        "How long to wait for a cpu-engine that still uses the arena of a gpu-engine that died.",
        default=60.0,
    )
    host_slots: int = setting("Most sequences on the host at once.", default=256)
    assist_rows: int = setting(
        "Most rows of a host batch, halved into two micro-batches, whose dense stages this engine"
        " may be lent for; 0: Dense Assist is off.",
        default=128,
    )
    assist_share: float = setting(
        "Share of this engine's time that it lends at most while it has work of its own.",
        default=0.35,
    )
    max_model_len: int | None = setting(
        "Most tokens of a request; unset: what the model and the KV memory allow.", default=None
    )
    max_running: int = setting(
        "Most sequences on the device at once; 0: 256 on CUDA, 16 on a CPU.", default=0
    )
    token_budget: int = setting(
        "Most tokens of an iteration, prefills included; 0: 2048 on CUDA, 256 on a CPU.", default=0
    )
    gpu_memory_fraction: float = setting(
        "Share of the CUDA device's memory to use for weights and KV.", default=0.9
    )
    lockstep: bool = setting(
        "Keep step with the cpu-engine's iterations: for measuring what that costs.", default=False
    )
    iteration_log: str | None = setting(
        "File for a line of JSON for each iteration: when, and what it held; for measurements.",
        default=None,
    )
    threads: int = setting("Compute threads on the host; 0 takes every allowed CPU.", default=0)

    def __post_init__(self) -> None:
        for name in ("arena_mib", "host_slots"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        require(self.arena_timeout_s >= 0, "arena_timeout_s must not be negative")
        require(0.0 <= self.assist_share <= 1.0, "assist_share must be in [0, 1]")
        for name in ("assist_rows", "device_kv_mib", "max_running", "token_budget", "threads"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(
            self.block_size > 0 and self.block_size % 16 == 0,
            "block_size must be a positive multiple of 16",
        )
        require(
            self.max_model_len is None or self.max_model_len > 1,
            "max_model_len must be greater than 1",
        )
        require(0.0 < self.gpu_memory_fraction <= 1.0, "gpu_memory_fraction must be in (0, 1]")
        kind, _, index = self.device.partition(":")
        require(
            self.device in ("cpu", "cuda")
            or (kind == "cuda" and index.isdecimal())
            or (kind == "emulated" and bool(index)),
            f"device: {self.device!r} is not cpu, cuda, cuda:<index> or emulated:<what>",
        )
        placement_from_text(self.placement)
        require(Path(self.run_dir).is_dir(), f"run_dir: {self.run_dir} is not a directory")
        require(
            self.iteration_tokens >= self.running_limit,
            f"token_budget {self.iteration_tokens} is below max_running {self.running_limit}:"
            " decodes alone could exceed it",
        )

    @property
    def on_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def is_emulated(self) -> bool:
        """Whether compute is replaced by waiting."""
        return self.device.startswith("emulated:")

    @property
    def running_limit(self) -> int:
        """Most sequences on the device at once."""
        return self.max_running or (16 if self.device == "cpu" else 256)

    @property
    def iteration_tokens(self) -> int:
        """Most tokens of an iteration."""
        return self.token_budget or (256 if self.device == "cpu" else 2048)

    @property
    def num_threads(self) -> int:
        """Compute threads to use."""
        return self.threads or len(os.sched_getaffinity(0))
