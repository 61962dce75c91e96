"""Profiles as files: read, written, watched."""
