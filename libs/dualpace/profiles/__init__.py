"""Profiles as files: read, written, watched; and estimated ones."""

from dualpace.profiles.estimate import estimated_profile
from dualpace.profiles.files import read_profile, write_profile
from dualpace.profiles.watcher import ProfileWatcher, for_model

__all__ = ["ProfileWatcher", "estimated_profile", "for_model", "read_profile", "write_profile"]
