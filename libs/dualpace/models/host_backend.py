"""What an engine on the host multiplies and attends with, by name."""

from dataclasses import dataclass

from dualpace.models.attention import PagedAttention
from dualpace.models.host_attention import host_attention
from dualpace.models.host_linear import host_linear
from dualpace.models.ipex_backend import IpexLinearFactory, IpexPagedAttention, load_ipex
from dualpace.models.linear import LinearFactory


@dataclass(frozen=True, slots=True)
class HostBackend:
    """One choice for the large parts of a decoder on the host."""

    name: str
    linear: LinearFactory
    attention: PagedAttention


def host_backend(
    name: str, num_threads: int, *, weights: str = "auto", int8_group: int = 0
) -> HostBackend:
    """Return a backend by its name in the cpu-engine's settings.

    `native`: our kernels, or torch where they are not built; `weights` and `int8_group` are for it,
    see host_linear. `ipex`: intel-extension-for-pytorch. Raises SettingsError if it cannot be had.
    """
    assert name in {"native", "ipex"}
    if name == "ipex":
        ipex = load_ipex()
        return HostBackend(name, IpexLinearFactory(ipex), IpexPagedAttention(ipex))
    linear = host_linear(num_threads, weights=weights, int8_group=int8_group)
    return HostBackend(name, linear, host_attention(num_threads))
