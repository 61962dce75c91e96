"""Profiles that are wrong by a factor, for tests and measurements of what mends them."""

import dataclasses

from dualpace.scheduling.curves import Curve, Grid
from dualpace.scheduling.profile import Profile, StageTimes


def skewed(profile: Profile, *, host: float = 1.0, gpu: float = 1.0) -> Profile:
    """Return a profile whose host and GPU seem to take so many times as long."""
    return dataclasses.replace(
        profile, host=_slowed(profile.host, host), gpu=_slowed(profile.gpu, gpu)
    )


def _slowed(stages: StageTimes, factor: float) -> StageTimes:
    def slowed(curve: Curve) -> Curve:
        return Curve(curve.x, tuple(ms * factor for ms in curve.ms))

    return StageTimes(
        pre_attention=slowed(stages.pre_attention),
        post_attention=slowed(stages.post_attention),
        head=slowed(stages.head),
        decode_attention=Grid(
            stages.decode_attention.rows, tuple(map(slowed, stages.decode_attention.curves))
        ),
        step_overhead_ms=stages.step_overhead_ms * factor,
    )
