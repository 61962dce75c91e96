"""Profiles as files: read, written, watched."""

from dualpace.profiles.files import read_profile, write_profile
from dualpace.profiles.watcher import ProfileWatcher, for_model

__all__ = ["ProfileWatcher", "for_model", "read_profile", "write_profile"]
