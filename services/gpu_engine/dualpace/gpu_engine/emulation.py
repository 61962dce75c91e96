"""What `--device emulated:…` names: a profile's file, or a preset GPU under the served model."""

from pathlib import Path

from dualpace.checkpoint import ModelConfig
from dualpace.core.errors import SettingsError
from dualpace.profiles import estimated_profile, read_profile
from dualpace.scheduling.cost import GpuCosts
from dualpace.scheduling.presets import GPUS

PREFIX = "emulated:"


def emulated_costs(device: str, config: ModelConfig) -> GpuCosts:
    """Return the times of an emulated GPU. Raises SettingsError, ProfileError."""
    name = device.removeprefix(PREFIX)
    if name in GPUS:
        return GpuCosts(estimated_profile(name, config, config.family.value))
    if not Path(name).is_file():
        raise SettingsError(
            f"device: {name!r} is neither the file of a profile nor one of {', '.join(GPUS)}"
        )
    return GpuCosts(read_profile(Path(name)))
