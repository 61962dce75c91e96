"""An estimated profile of a preset GPU under a model that is at hand."""

from dualpace.checkpoint import ModelConfig
from dualpace.core.errors import SettingsError
from dualpace.scheduling.presets import HOSTS, named_gpu
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.roofline import ModelSpec, roofline_profile

_UNUSED_HOST = next(iter(HOSTS.values()))


def estimated_profile(
    gpu: str, config: ModelConfig, name: str, *, assist_sync_us: float = 30.0
) -> Profile:
    """Return a profile whose GPU and transfers are those of a preset; its host means nothing.

    Raises SettingsError for an unknown preset, and for mixtures of experts.
    """
    if config.moe is not None:
        raise SettingsError("device: presets know dense models alone, and this is a mixture")
    spec = ModelSpec(
        name=name,
        num_layers=config.num_layers,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
    )
    return roofline_profile(named_gpu(gpu), _UNUSED_HOST, spec, assist_sync_us=assist_sync_us)
