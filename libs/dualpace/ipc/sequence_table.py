"""The sequence table: what a restarted cpu-engine needs to go on with every request that it owns.

Only the cpu-engine writes it. A record is complete before its state says OWNED; each step then
stores the KV, the block table entry and the token id before `num_tokens`, whose single aligned
store is the commit point. The last token is the token id at `num_tokens - 1`.
"""

import numpy as np
import numpy.typing as npt

from dualpace.core.request import Request, SamplingParams
from dualpace.ipc.layout import NO_BOUND, SLOT_FREE, SLOT_OWNED


class SequenceTable:
    """Records by slot."""

    def __init__(self, records: npt.NDArray[np.void]) -> None:
        self._records = records

    def open(self, slot: int, request: Request, num_tokens: int, return_at: int | None) -> None:
        """Enter a committed request."""
        record = self._records[slot : slot + 1]
        sampling = request.sampling
        record["state"] = SLOT_FREE
        record["num_tokens"] = num_tokens
        record["request_id"] = request.request_id
        record["gateway_id"] = request.gateway_id
        record["prompt_tokens"] = request.prompt_tokens
        record["max_tokens"] = request.max_tokens
        record["return_at"] = NO_BOUND if return_at is None else return_at
        record["logprobs"] = -1 if sampling.logprobs is None else sampling.logprobs
        record["arrival_s"] = request.arrival_s
        record["seed"] = sampling.seed
        record["temperature"] = sampling.temperature
        record["top_p"] = sampling.top_p
        record["min_p"] = sampling.min_p
        record["top_k"] = sampling.top_k
        record["num_stop_token_ids"] = len(request.stop_token_ids)
        record["stop_token_ids"][0, : len(request.stop_token_ids)] = request.stop_token_ids
        record["state"] = SLOT_OWNED

    def advance(self, slots: npt.ArrayLike, num_tokens: npt.ArrayLike) -> None:
        """Commit one step of several sequences."""
        self._records["num_tokens"][np.asarray(slots, dtype=np.intp)] = num_tokens

    def close(self, slot: int) -> None:
        """Take a request out."""
        self._records["state"][slot] = SLOT_FREE

    def clear(self) -> None:
        """Take every request out."""
        self._records["state"] = SLOT_FREE

    def owned_slots(self) -> list[int]:
        """Slots whose request the cpu-engine owns."""
        return np.flatnonzero(self._records["state"] == SLOT_OWNED).tolist()

    def read(self, slot: int) -> tuple[Request, int, int | None]:
        """Return the request in an owned slot, its known tokens, and its `return_at`."""
        record = self._records[slot]
        assert record["state"] == SLOT_OWNED
        count = int(record["num_stop_token_ids"])
        logprobs = int(record["logprobs"])
        bound = int(record["return_at"])
        request = Request(
            request_id=int(record["request_id"]),
            gateway_id=int(record["gateway_id"]),
            prompt_tokens=int(record["prompt_tokens"]),
            max_tokens=int(record["max_tokens"]),
            stop_token_ids=tuple(record["stop_token_ids"][:count].tolist()),
            sampling=SamplingParams(
                temperature=float(record["temperature"]),
                top_p=float(record["top_p"]),
                top_k=int(record["top_k"]),
                min_p=float(record["min_p"]),
                seed=int(record["seed"]),
                logprobs=None if logprobs < 0 else logprobs,
            ),
            arrival_s=float(record["arrival_s"]),
        )
        return request, int(record["num_tokens"]), None if bound == NO_BOUND else bound
