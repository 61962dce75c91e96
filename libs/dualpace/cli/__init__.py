"""The `dualpace` command: a whole node on one machine."""
