"""How long answers are, learned from those that end on the device.

Nobody knows a request's length beforehand, and the mean of those that have ended is too short while
long ones still run. Tokens per ending has no such bias: every token counts at once, ended or not.
That is the likeliest mean if requests end with equal probability at any token, requests that move
away included. It knows no request and no clock.
"""


class AnswerLength:
    """Expected tokens until an answer ends: an average over about the last `memory` endings.

    Until some have ended, `before` endings of `expected` tokens stand for them.
    """

    def __init__(
        self, *, expected: float = 64.0, before: float = 4.0, memory: float = 256.0
    ) -> None:
        assert expected >= 1.0
        assert 0.0 < before < memory
        self._tokens = expected * before
        self._endings = before
        self._kept = 1.0 - 1.0 / memory

    def token(self, *, last: bool) -> None:
        """Note one token of an answer, and whether it is its last."""
        self._tokens += 1.0
        if last:
            self._tokens *= self._kept
            self._endings = self._endings * self._kept + self._kept

    @property
    def mean(self) -> float:
        """Tokens."""
        return self._tokens / self._endings
