"""What `--device emulated:…` names: a profile's file, or a preset GPU under the served model."""

from pathlib import Path

from dualpace.checkpoint import ModelConfig
from dualpace.core.errors import SettingsError
from dualpace.profiles import read_profile
from dualpace.scheduling.cost import GpuCosts
from dualpace.scheduling.presets import GPUS, HOSTS
from dualpace.scheduling.roofline import ModelSpec, roofline_profile

PREFIX = "emulated:"


def emulated_costs(device: str, config: ModelConfig) -> GpuCosts:
    """Return the times of an emulated GPU. Raises SettingsError, ProfileError."""
    name = device.removeprefix(PREFIX)
    if name in GPUS:
        host = next(iter(HOSTS.values()))  # its tables are not looked at
        return GpuCosts(roofline_profile(GPUS[name], host, _shape_of(config)))
    if not Path(name).is_file():
        raise SettingsError(
            f"device: {name!r} is neither the file of a profile nor one of {', '.join(GPUS)}"
        )
    return GpuCosts(read_profile(Path(name)))


def _shape_of(config: ModelConfig) -> ModelSpec:
    if config.moe is not None:
        raise SettingsError("device: presets estimate dense models only; give a profile's file")
    return ModelSpec(
        name=config.family.value,
        num_layers=config.num_layers,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
    )
