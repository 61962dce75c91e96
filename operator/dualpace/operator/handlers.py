"""What kopf does here: credentials, watches and the probe. No handler decides anything.

Handlers of raw events only: those neither annotate objects nor add finalizers, so an operator that
is uninstalled leaves nothing behind that could block a deletion.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

import kopf

from dualpace.operator.controller import Controller
from dualpace.operator.errors import ClusterError
from dualpace.operator.names import SERVICE_LABEL
from dualpace.operator.world import KINDS, Kind

log = logging.getLogger(__name__)

_INACTIVITY_S = 90.0


def login() -> kopf.ConnectionInfo:
    """Return credentials: of the pod's service account, or of KUBECONFIG. Raises ClusterError."""
    settings = kopf.OperatorSettings()
    info = None
    if not os.environ.get("KUBECONFIG"):
        info = kopf.login_with_service_account(settings=settings)
    if info is None:
        info = kopf.login_with_kubeconfig(settings=settings)
    if info is None:
        raise ClusterError("no credentials: neither in a pod, nor is KUBECONFIG set")
    return info


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings for an operator that only watches."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.chunk_size = 250
    settings.watching.inactivity_timeout = _INACTIVITY_S
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.1  # handlers do not wait for anything
    for kind in KINDS.values():
        if kind.ours:
            group, _, version = kind.api_version.rpartition("/")
            settings.watching.label_selectors[group, version, kind.plural] = SERVICE_LABEL
    return settings


def registry(controller: Controller, *, max_silence_s: float) -> kopf.OperatorRegistry:
    """Return what kopf is to call: the store for every event, and the age of the last round."""
    result = kopf.OperatorRegistry()

    async def find_credentials(**_: Any) -> kopf.ConnectionInfo:
        return login()

    async def seconds_since_last_round(**_: Any) -> float:
        age_s = controller.age_s()
        if age_s > max_silence_s:
            raise kopf.PermanentError(f"nothing was reconciled for {age_s:.0f} s")
        return age_s

    kopf.on.login(registry=result)(find_credentials)
    kopf.on.probe(registry=result, id="age_s")(seconds_since_last_round)
    for kind in KINDS.values():
        _watch(result, kind, controller)
    return result


def _watch(result: kopf.OperatorRegistry, kind: Kind, controller: Controller) -> None:
    async def take(event: Mapping[str, Any], **_: Any) -> None:
        controller.store.event(kind.name, event["type"], event["object"])

    group, _, version = kind.api_version.rpartition("/")
    kopf.on.event(
        group=group, version=version, plural=kind.plural, registry=result, id=kind.plural
    )(take)
