"""Notices that a profile's file has changed, and takes the new one if it is good.

Asked now and then from a loop that has better things to do: a poll that finds nothing new is one
`stat`. Files that are written in place, replaced by rename, or swapped as Kubernetes swaps a
ConfigMap's symlink are all noticed; a change is taken once it has been still for a moment. What
cannot be used is refused with the reason, and the profile before it stays in force. Not
thread-safe; it decides nothing but which profile holds.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from dualpace.core.errors import ProfileError
from dualpace.profiles.files import MAX_BYTES, parse_profile
from dualpace.scheduling.profile import Profile

log = logging.getLogger(__name__)

Identity = tuple[int, int, int, int]


def for_model(fingerprint: str) -> Callable[[Profile], None]:
    """Return a check that a profile is of this model, or of any."""

    def check(profile: Profile) -> None:
        found = profile.model.fingerprint
        if found and found != fingerprint:
            raise ProfileError(
                f"profile.model.fingerprint: {found[:12]}… is another model than the one that is"
                f" served, {fingerprint[:12]}…"
            )

    return check


class ProfileWatcher:
    """The last good profile of a file."""

    def __init__(
        self,
        path: Path,
        *,
        check: Callable[[Profile], None] = lambda _: None,
        debounce_s: float = 0.5,
    ) -> None:
        """Watch a file, there or not. `check` raises ProfileError for one that does not fit."""
        self._path = path
        self._check = check
        self._debounce_s = debounce_s
        self._seen: Identity | None = None
        self._seen_s = float("-inf")
        self._settled = False
        self._digest = b""
        self.profile: Profile | None = None
        """The one in force; None: there has been no good one yet."""
        self.error = ""
        """Why the file that is there now is not in force; empty: it is."""
        self.loads = 0
        """Profiles taken."""
        self.refusals = 0
        """Profiles refused."""

    def load(self) -> Profile:
        """Take the file as it is now, for a start. Raises ProfileError if it is no good."""
        self._seen, self._settled = _identity(self._path), True
        if self._read() is None or self.profile is None:
            raise ProfileError(self.error)
        return self.profile

    def poll(self, now_s: float) -> Profile | None:
        """Return a new profile if there is one that is good. `now_s` is a monotonic clock's."""
        identity = _identity(self._path)
        if identity != self._seen:
            self._seen, self._seen_s, self._settled = identity, now_s, False
        if self._settled or now_s < self._seen_s + self._debounce_s:
            return None
        self._settled = True
        return self._read()

    def gauges(self) -> dict[str, float]:
        """Return numbers for metrics."""
        return {
            "profile_loads_total": float(self.loads),
            "profile_refusals_total": float(self.refusals),
            "profile_refused": float(bool(self.error)),
        }

    def _read(self) -> Profile | None:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._refuse(f"{self._path}: {error.strerror}", b"")
            return None
        digest = hashlib.sha256(data).digest()
        if digest == self._digest:
            return None  # touched, or put back: what was said of these bytes still holds
        try:
            profile = parse_profile(data, self._path)
            self._check(profile)
        except ProfileError as error:
            self._refuse(str(error), digest)
            return None
        self._digest, self.profile, self.error = digest, profile, ""
        self.loads += 1
        log.info("profile %s: %s, %s", self._path, profile.origin.value, profile.host_name)
        return profile

    def _refuse(self, reason: str, digest: bytes) -> None:
        self._digest = digest
        self.refusals += 1
        self.error = reason
        kept = "the one before stays in force" if self.profile else "there is none in force"
        log.warning("profile refused, %s: %s", kept, reason)


def _identity(path: Path) -> Identity | None:
    """Return what changes whenever the file behind the path does; None: there is none."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - follows the symlinks
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
