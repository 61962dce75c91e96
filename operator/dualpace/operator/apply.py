"""Carries out actions against the API server, some at a time. Each may fail alone.

Conflicts that mean "already so" are no failures: created twice, deleted twice, or deleted after a
successor took the name.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from dualpace.operator.actions import Action, Annotate, Apply, Create, Delete, SetStatus, describe
from dualpace.operator.client import ApiClient
from dualpace.operator.errors import ApiError
from dualpace.operator.names import FIELD_MANAGER
from dualpace.operator.world import KINDS, Kind

log = logging.getLogger(__name__)

_PARALLEL = 8
_NOT_FOUND, _CONFLICT = 404, 409


def collection_path(kind: Kind, namespace: str = "") -> str:
    """Return the path of a kind's objects in one namespace, or in all."""
    root = "/api/v1" if kind.api_version == "v1" else f"/apis/{kind.api_version}"
    return f"{root}/namespaces/{namespace}/{kind.plural}" if namespace else f"{root}/{kind.plural}"


async def carry_out(client: ApiClient, actions: Sequence[Action]) -> list[str]:
    """Do them all; returns what was refused, as `action: the server's words`.

    New objects come last: what they refer to is there by then.
    """
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(action: Action) -> str | None:
        async with limit:
            try:
                await _do(client, action)
            except ApiError as error:
                log.warning("%s: %s", describe(action), error)
                return f"{describe(action)}: {error}"
        log.info("%s", describe(action))
        return None

    waves = (
        [action for action in actions if not isinstance(action, Create)],
        [action for action in actions if isinstance(action, Create)],
    )
    results = [r for wave in waves for r in await asyncio.gather(*map(one, wave))]
    return [failure for failure in results if failure is not None]


async def _do(client: ApiClient, action: Action) -> None:
    match action:
        case Apply(manifest):
            await client.apply(_path_of(manifest), manifest)
        case Create(manifest):
            path = _path_of(manifest).rsplit("/", 1)[0]
            await _tolerating(
                _CONFLICT,
                client.request("POST", path, body=manifest, params={"fieldManager": FIELD_MANAGER}),
            )
        case Delete(kind, namespace, name, uid, force):
            options: dict[str, Any] = {
                "preconditions": {"uid": uid},
                "propagationPolicy": "Background",
            }
            if force:
                options["gracePeriodSeconds"] = 0
            path = f"{collection_path(KINDS[kind], namespace)}/{name}"
            await _tolerating(_CONFLICT, client.request("DELETE", path, body=options))
        case SetStatus(kind, namespace, name, status):
            path = f"{collection_path(KINDS[kind], namespace)}/{name}/status"
            await _tolerating(
                _NOT_FOUND,
                client.request(
                    "PATCH",
                    path,
                    body={"status": status},
                    content_type="application/merge-patch+json",
                    params={"fieldManager": FIELD_MANAGER},
                ),
            )
        case Annotate(kind, namespace, name, annotation, value):
            path = f"{collection_path(KINDS[kind], namespace)}/{name}"
            await _tolerating(
                _NOT_FOUND,
                client.request(
                    "PATCH",
                    path,
                    body={"metadata": {"annotations": {annotation: value}}},
                    content_type="application/merge-patch+json",
                    params={"fieldManager": FIELD_MANAGER},
                ),
            )


async def _tolerating(status: int, request: Any) -> None:
    try:
        await request
    except ApiError as error:
        if error.status not in (status, _NOT_FOUND):
            raise


def _path_of(manifest: dict[str, Any]) -> str:
    meta = manifest["metadata"]
    kind = KINDS[manifest["kind"]]
    return f"{collection_path(kind, meta.get('namespace', ''))}/{meta['name']}"
