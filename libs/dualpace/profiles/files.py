"""Profiles as files, one JSON document each: read with every check, written all or nothing."""

import json
import os
from pathlib import Path

from dualpace.core.errors import ProfileError
from dualpace.scheduling.profile import Profile
from dualpace.scheduling.profile_json import profile_from_json, profile_to_json

MAX_BYTES = 4 << 20


def read_profile(path: Path) -> Profile:
    """Return the profile in a file. Raises ProfileError that names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    return parse_profile(data, path)


def parse_profile(data: bytes, path: Path) -> Profile:
    """Return the profile in a file's bytes. Raises ProfileError as `read_profile` does."""
    if len(data) > MAX_BYTES:
        raise ProfileError(f"{path}: over {MAX_BYTES >> 20} MiB, which is no profile")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: no JSON document: {error}") from None
    try:
        return profile_from_json(document)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile so that a reader sees the old file or the new one, never a part."""
    text = json.dumps(profile_to_json(profile), indent=1) + "\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ProfileError(f"{path}: cannot be written: {error.strerror}") from None
