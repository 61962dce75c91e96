"""Which tokens a sequence has, and how often each was generated; it grows with the sequence."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_INITIAL_CAPACITY = 64


class TokenCounts:
    """Distinct tokens in order of first appearance. Adding a token costs the same however many."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._ids = np.empty(_INITIAL_CAPACITY, np.int64)
        self._generated = np.zeros(_INITIAL_CAPACITY, np.int32)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[U] distinct token ids."""
        return self._ids[: len(self._index)]

    @property
    def generated(self) -> npt.NDArray[np.int32]:
        """[U] how often each was generated; 0 for those of the prompt alone."""
        return self._generated[: len(self._index)]

    def add_prompt(self, token_ids: Sequence[int]) -> None:
        """Note prompt tokens."""
        for token_id in dict.fromkeys(token_ids):
            self._place(token_id)

    def add_generated(self, token_ids: Sequence[int]) -> None:
        """Note generated tokens."""
        for token_id in token_ids:
            place = self._place(token_id)  # which may replace the arrays
            self._generated[place] += 1

    def _place(self, token_id: int) -> int:
        place = self._index.setdefault(int(token_id), len(self._index))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._generated = np.concatenate((self._generated, np.zeros_like(self._generated)))
        self._ids[place] = token_id
        return place
