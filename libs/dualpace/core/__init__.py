"""Values and small mechanisms that every process shares.

Standard library only, no IO beyond logging.
"""
