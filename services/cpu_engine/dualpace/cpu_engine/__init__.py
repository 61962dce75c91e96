"""The host's decode engine: own queue, own clock, KV in the arena."""
