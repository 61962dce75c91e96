"""The sequence table: what a restarted cpu-engine needs to go on with every request that it owns.

Only the cpu-engine writes it. A record is complete before its state says OWNED; each step then
stores the KV, the block table entry and the token id before `num_tokens`, whose single aligned
store is the commit point. The last token is the token id at `num_tokens - 1`. The request itself,
grammar and all, stands beside the record in the encoding of the control channels: a new field of
a request is no change of the layout.
"""

import numpy as np
import numpy.typing as npt

from dualpace.core.request import Request
from dualpace.ipc.codec import decode_request, encode_request
from dualpace.ipc.layout import NO_BOUND, SLOT_FREE, SLOT_LENT, SLOT_OWNED
from dualpace.ipc.proto import engine_pb2 as pb


class SequenceTable:
    """Records by slot."""

    def __init__(self, records: npt.NDArray[np.void], requests: npt.NDArray[np.uint8]) -> None:
        self._records = records
        self._requests = requests

    def open(self, slot: int, request: Request, num_tokens: int, return_at: int | None) -> None:
        """Enter a committed request, which must fit (`encoded_size`)."""
        encoded = encode_request(request).SerializeToString()
        assert len(encoded) <= self._requests.shape[1], "the gpu-engine takes none that is larger"
        record = self._records[slot : slot + 1]
        record["state"] = SLOT_FREE
        record["num_tokens"] = num_tokens
        record["request_id"] = request.request_id
        record["return_at"] = NO_BOUND if return_at is None else return_at
        record["request_bytes"] = len(encoded)
        self._requests[slot, : len(encoded)] = np.frombuffer(encoded, np.uint8)
        record["state"] = SLOT_OWNED

    def advance(self, slots: npt.ArrayLike, num_tokens: npt.ArrayLike) -> None:
        """Commit one step of several sequences."""
        self._records["num_tokens"][np.asarray(slots, dtype=np.intp)] = num_tokens

    def lend(self, slot: int, num_tokens: int) -> None:
        """Note that the gpu-engine may copy to or from the blocks of the first `num_tokens`.

        They stand in the block table already. The slot has no request that is owned.
        """
        record = self._records[slot : slot + 1]
        record["state"] = SLOT_FREE
        record["num_tokens"] = num_tokens
        record["state"] = SLOT_LENT

    def close(self, slot: int) -> None:
        """Take a request out."""
        self._records["state"][slot] = SLOT_FREE

    def clear(self) -> None:
        """Take every request out."""
        self._records["state"] = SLOT_FREE

    def owned_slots(self) -> list[int]:
        """Slots whose request the cpu-engine owns."""
        return np.flatnonzero(self._records["state"] == SLOT_OWNED).tolist()

    def lent_slots(self) -> list[int]:
        """Slots whose blocks the gpu-engine may be copying to or from."""
        return np.flatnonzero(self._records["state"] == SLOT_LENT).tolist()

    def num_tokens(self, slot: int) -> int:
        """Return how many tokens the blocks of a slot are for."""
        return int(self._records["num_tokens"][slot])

    def request_id(self, slot: int) -> int | None:
        """Return which request the cpu-engine owns in a slot; None: it owns none there."""
        record = self._records[slot]
        return int(record["request_id"]) if record["state"] == SLOT_OWNED else None

    def read(self, slot: int) -> tuple[Request, int, int | None]:
        """Return the request in an owned slot, its known tokens, and its `return_at`."""
        record = self._records[slot]
        assert record["state"] == SLOT_OWNED
        encoded = self._requests[slot, : int(record["request_bytes"])].tobytes()
        request = decode_request(pb.Request.FromString(encoded))
        bound = int(record["return_at"])
        return request, int(record["num_tokens"]), None if bound == NO_BOUND else bound
