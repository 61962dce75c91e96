"""Values and small mechanisms that every process shares: standard library only, no IO beyond logging."""
