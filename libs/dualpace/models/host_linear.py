"""Chooses how an engine on the host multiplies by weights, and says which way it is."""

import logging

from dualpace.core.errors import SettingsError
from dualpace.models.linear import LinearFactory, torch_linear

log = logging.getLogger(__name__)


def host_linear(num_threads: int, *, weights: str = "auto", int8_group: int = 0) -> LinearFactory:
    """Return the native kernels' factory where they are built, otherwise torch's, with a warning.

    Arguments as those of NativeLinearFactory. Raises SettingsError if a format is asked for that
    torch has not.
    """
    try:
        from dualpace.models.native_linear import NativeLinearFactory  # noqa: PLC0415
    except ImportError as error:
        if weights != "auto":
            raise SettingsError(
                f"weights={weights} needs the native kernels, which are not built ({error})"
            ) from None
        log.warning("native kernels are not built (%s): matrix products run in torch", error)
        return torch_linear
    return NativeLinearFactory(num_threads, weights=weights, int8_group=int8_group)
