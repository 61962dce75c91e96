"""Typed errors.

Whatever a person can act on is a DualPaceError whose text says what to do about it.
"""


class DualPaceError(Exception):
    """Base of every error raised on purpose; its text is complete without a traceback."""


class SettingsError(DualPaceError):
    """A flag or environment variable is unknown, malformed or out of range."""


class CheckpointError(DualPaceError):
    """A model directory or file is missing, damaged or of an unsupported kind."""


class CapacityError(DualPaceError):
    """Memory, blocks or slots that were asked for cannot be had."""


class ArenaError(DualPaceError):
    """The shared-memory arena is absent, foreign, stale or of another layout version."""


class ProtocolError(DualPaceError):
    """A peer sent something that this version does not understand."""


class GrammarError(DualPaceError):
    """A grammar is malformed, too complex, or allows nothing more; the text is for the client."""


class StoppedError(DualPaceError):
    """A stop was requested before the service was ready: no failure."""


class PeerLostError(DualPaceError):
    """The process at the other end of a channel went away."""


class ProfileError(DualPaceError):
    """A hardware profile is malformed, of an unsupported version, or lacks something needed."""


class PredictionRangeError(DualPaceError):
    """A performance model was asked beyond what was measured."""
