"""Who may use the gateway: keys from a file, read again whenever it changes.

    {"keys": [{"name": "team-a", "key": "sk-…", "requests_per_minute": 60}]}

A key may be given as "sha256:<hex>". Only digests are kept and compared: neither a lookup nor its
time tells anything of a key. Keys are never logged.
"""

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpace.core.errors import SettingsError
from dualpace.gateway.limits.gcra import Limit

log = logging.getLogger(__name__)

_CHECK_EVERY_S = 1.0
_HASHED = "sha256:"
_MINUTE, _DAY = 60, 86_400
_LIMITS = {
    "requests_per_minute": ("requests", _MINUTE),
    "tokens_per_minute": ("tokens", _MINUTE),
    "requests_per_day": ("requests", _DAY),
    "tokens_per_day": ("tokens", _DAY),
}


@dataclass(frozen=True, slots=True)
class Client:
    """Who a request comes from, and what it may use."""

    name: str
    limits: tuple[Limit, ...] = ()


ANYBODY = Client("anybody")
"""Where there are no keys."""


class KeyFile:
    """The keys of one file. Not for several threads."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises SettingsError."""
        self._path = path
        self._stamp = _stamp(path)
        self._clients = _read(path)
        self._checked_s = time.monotonic()

    def client(self, key: str) -> Client | None:
        """Return whose key it is, or None."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        known, client = self._clients.get(digest, (bytes(32), None))
        return client if hmac.compare_digest(known, digest) else None

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._checked_s < _CHECK_EVERY_S:
            return
        self._checked_s = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._clients = _read(self._path)
        except SettingsError as error:
            log.error("the keys stay as they were: %s", error)  # noqa: TRY400 - it says all
        else:
            log.info("%d keys read from %s", len(self._clients), self._path)


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when the file does; mounted secrets are replaced as a whole."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _read(path: Path) -> Mapping[bytes, tuple[bytes, Client]]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"api_keys_file: {path} cannot be read: {error}") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise SettingsError(f'api_keys_file: {path} needs "keys", a list with one entry at least')
    clients: dict[bytes, tuple[bytes, Client]] = {}
    for index, entry in enumerate(entries):
        where = f"api_keys_file: {path}: keys[{index}]"
        digest, client = _entry(entry, where)
        if digest in clients:
            raise SettingsError(f"{where} repeats a key")
        clients[digest] = (digest, client)
    return clients


def _entry(entry: Any, where: str) -> tuple[bytes, Client]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise SettingsError(f'{where} needs "name", a string')
    unknown = set(entry) - {"name", "key", *_LIMITS}
    if unknown:
        raise SettingsError(f"{where} has unknown fields: {', '.join(sorted(unknown))}")
    limits = []
    for field, (unit, window_s) in _LIMITS.items():
        value = entry.get(field)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise SettingsError(f"{where}.{field} must be a whole number of 1 or more")
        limits.append(Limit(unit, value, window_s))
    return _digest(entry.get("key"), where), Client(entry["name"], tuple(limits))


def _digest(key: Any, where: str) -> bytes:
    if not isinstance(key, str) or not key:
        raise SettingsError(f'{where} needs "key", a string')
    if not key.startswith(_HASHED):
        return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    try:
        digest = bytes.fromhex(key.removeprefix(_HASHED))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise SettingsError(f"{where}.key: sha256: must be followed by 64 hexadecimal digits")
    return digest
