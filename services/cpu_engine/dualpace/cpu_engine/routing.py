"""Wiring of the host's policy: what the settings say, a profile's file, and Dense Assist."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dualpace.core.assist import AssistTerms
from dualpace.core.clock import Clock
from dualpace.core.request import Engine
from dualpace.cpu_engine.assist import AssistedStep
from dualpace.cpu_engine.borrowing import Borrower, Borrowing, NoBorrowing
from dualpace.cpu_engine.settings import CpuEngineSettings
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_region import AssistRegion
from dualpace.ipc.bell import spin_s_for
from dualpace.models.attention import PagedAttention
from dualpace.models.decoder import Decoder
from dualpace.profiles import ProfileWatcher, for_model
from dualpace.scheduling.forced_route import ForcedRoute
from dualpace.scheduling.host_policy import HostPolicy, Unprofiled
from dualpace.scheduling.live_policy import LivePolicy
from dualpace.scheduling.route import Route

log = logging.getLogger(__name__)

_POLL_S = 0.25
_PATTERNS = {"always": (Route.ASSIST,), "alternate": (Route.ASSIST, Route.HOST)}


class _RoutingPolicy(HostPolicy, Protocol):
    """A host policy that routes by what the device offers."""

    terms: AssistTerms


class ProfileFile:
    """Hands the profile of a watched file to a policy whenever it changes."""

    def __init__(self, watcher: ProfileWatcher, policy: LivePolicy, clock: Clock) -> None:
        self._watcher = watcher
        self._policy = policy
        self._clock = clock
        self._next_s = 0.0

    def poll(self) -> None:
        """Look, if it is time to, and take what is new and good."""
        now_s = self._clock.now()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _POLL_S
        profile = self._watcher.poll(now_s)
        if profile is not None:
            self._policy.replace(profile)

    def gauges(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {**self._watcher.gauges(), **self._policy.gauges()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What decides how the host's batches run, and what carries it out."""

    policy: HostPolicy
    borrower: Borrower
    profile: ProfileFile | None = None


def build_routing(
    settings: CpuEngineSettings,
    *,
    decoder: Decoder,
    arena: Arena,
    attention: PagedAttention,
    fingerprint: bytes,
    clock: Clock,
    num_threads: int,
) -> Routing:
    """Return the routing that the settings ask for. Raises ProfileError for a bad profile."""
    profile: ProfileFile | None = None
    policy: _RoutingPolicy
    if settings.profile is not None:
        watcher = ProfileWatcher(Path(settings.profile), check=for_model(fingerprint.hex()))
        live = LivePolicy(watcher.load(), itl_target_s=_seconds(settings.itl_target_ms))
        profile = ProfileFile(watcher, live, clock)
        policy = live
    elif settings.assist in _PATTERNS:
        policy = ForcedRoute(_PATTERNS[settings.assist])
    else:
        log.info("no profile: every stage of a batch runs here")
        return Routing(policy=Unprofiled(), borrower=NoBorrowing())
    if settings.assist == "off" or not arena.geometry.assist_rows:
        log.info("assist is off: every stage of a batch runs here")
        return Routing(policy=policy, borrower=NoBorrowing(), profile=profile)
    step = AssistedStep(
        decoder=decoder,
        arena=arena,
        attention=attention,
        device_bell=AssistRegion(arena).bell(Engine.GPU),
        clock=clock,
        deadline_s=settings.assist_deadline_s,
        spin_s=spin_s_for(num_threads),
    )
    log.info("assist: %s, deadline %g s", settings.assist, settings.assist_deadline_s)
    return Routing(policy=policy, borrower=Borrowing(step, policy), profile=profile)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
