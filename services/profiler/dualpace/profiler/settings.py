"""Settings of the profiler."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dualpace.core.service import ServiceSettings
from dualpace.core.settings import require, setting
from dualpace.scheduling.presets import named_gpu

EMULATED = "emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSettings(ServiceSettings):
    """Measure this node with a model, and write its profile.

    Run it while nothing else runs. `dualpace profile show FILE` draws what was measured.
    """

    model: str = setting(
        "Model directory, GGUF file, hub id (org/name[@revision]), or demo.", default="demo"
    )
    out: str | None = setting(
        "File to write the profile to; unset: profile.json, or none where there is a report.",
        default=None,
    )
    quick: bool = setting(
        "Fewer and shorter measurements, for a first look: a minute or two.", default=False
    )
    device: str = setting(
        "cuda or cuda:<index>; cpu, in the role of a GPU; or emulated:<preset>, whose tables are"
        " estimated.",
        default="cpu",
    )
    dtype: str = setting(
        "Data type of weights, activations and KV; auto is float32 without CUDA, and on CUDA that"
        " of the model's files.",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    threads: int = setting(
        "Compute threads of the cpu-engine; 0 takes every allowed CPU.", default=0
    )
    device_threads: int = setting(
        "Compute threads of a gpu-engine on the CPU; 0: as many as the cpu-engine.", default=0
    )
    block_size: int = setting("Tokens a KV block; a multiple of 16.", default=16)
    memory_mib: int = setting(
        "Most memory for the KV that attention is measured on, on each side; 0: an eighth of what"
        " is free, 4 GiB at most.",
        default=0,
    )
    itl_target_ms: float = setting(
        "Time between two tokens that thresholds are derived for.", default=1000.0
    )
    report: str | None = setting(
        "File that also gets a short form of the profile, for the operator.", default=None
    )
    restart: bool = setting(
        "Measure everything anew, even if an interrupted run left results.", default=False
    )

    def __post_init__(self) -> None:
        for name in ("threads", "device_threads", "memory_mib"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.itl_target_ms > 0, "itl_target_ms must be positive")
        require(
            self.block_size > 0 and self.block_size % 16 == 0,
            "block_size must be a positive multiple of 16",
        )
        kind, _, rest = self.device.partition(":")
        if kind == EMULATED:
            named_gpu(rest)
        else:
            known = self.device in ("cpu", "cuda") or (kind == "cuda" and rest.isdecimal())
            require(known, f"device: {self.device!r} is not cpu, cuda[:index] or emulated:<preset>")
        folder = Path(self.out or "").parent
        require(folder.is_dir(), f"out: {folder} is not a directory")

    @property
    def target(self) -> Path | None:
        """Where the profile goes; None: a report is all that is wanted."""
        if self.out is None and self.report is not None:
            return None
        return Path(self.out or "profile.json")

    @property
    def journal(self) -> Path:
        """Where results are kept until the profile is written."""
        target = self.target or Path(tempfile.gettempdir()) / "dualpace-profile.json"
        return target.with_name(target.name + ".partial")

    @property
    def on_cuda(self) -> bool:
        """Whether there is a GPU to measure."""
        return self.device.startswith("cuda")

    @property
    def emulated(self) -> str | None:
        """Name of the preset that stands for the GPU; None: the device is measured."""
        kind, _, name = self.device.partition(":")
        return name if kind == EMULATED else None

    @property
    def host_threads(self) -> int:
        """Compute threads of the cpu-engine."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def stand_in_threads(self) -> int:
        """Compute threads of a gpu-engine on the CPU."""
        return self.device_threads or self.host_threads
