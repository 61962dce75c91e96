"""The world as it is kept up to date: by events as they come, and by full listings now and then.

Events alone do not suffice: what vanished while a watch was cut is never reported. A listing
replaces everything of its kind, except what events touched since it began.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dualpace.operator.world import KINDS, Key, World

log = logging.getLogger(__name__)


class Store:
    """Holds the world. `changed` is called with the kind and the views before and after."""

    def __init__(self, changed: Callable[[str, Any, Any], None]) -> None:
        self.world = World()
        self._changed = changed
        self._touched: dict[str, set[Key]] | None = None

    def event(self, kind: str, event_type: str | None, body: Mapping[str, Any]) -> None:
        """Take a watch event; its type is None for objects of a first listing."""
        view = KINDS[kind].view(body)
        key, held = view.id.key, self.world.views[kind].get(view.id.key)
        if event_type == "DELETED":
            if held is None or held.id.uid != view.id.uid:
                return  # of a predecessor: events of two objects may overtake each other
            view = None
        if self._touched is not None:
            self._touched.setdefault(kind, set()).add(key)
        self._put(kind, key, view)

    def note_drift(self, uids: set[str]) -> None:
        """Take the uids of the pods whose engines want a new profile."""
        changed = self.world.drifting ^ uids
        self.world.drifting = uids
        for pod in list(self.world.views["Pod"].values()):
            if pod.id.uid in changed:
                self._changed("Pod", pod, pod)

    def begin_listing(self) -> None:
        """Remember from now on what events touch."""
        self._touched = {}

    def take_listing(self, kind: str, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Replace what is known of a kind."""
        views = {view.id.key: view for view in map(KINDS[kind].view, bodies)}
        touched = (self._touched or {}).get(kind, set())
        for key in (self.world.views[kind].keys() | views.keys()) - touched:
            self._put(kind, key, views.get(key))

    def end_listing(self) -> None:
        """Events need no remembering any more."""
        self._touched = None

    def _put(self, kind: str, key: Key, view: Any) -> None:
        held = self.world.views[kind].get(key)
        if view == held:
            return
        if view is None:
            del self.world.views[kind][key]
        else:
            self.world.views[kind][key] = view
        self._changed(kind, held, view)
