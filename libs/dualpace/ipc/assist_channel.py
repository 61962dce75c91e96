"""One micro-batch's way to the device and back: the host calls, the device answers.

A call asks for the dense stages at one boundary (scheduling.assist says which). At most one call is
open in a channel. Both sides see each other's latest number; nothing is queued. What was given up
by the host stays open until the device has answered it: until then the channel cannot be used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import FinishReason
from dualpace.ipc.assist_layout import (
    CALL,
    MESSAGE_BYTES,
    RESULT,
    ROW,
    STATUS_DONE,
    AssistGeometry,
    ChannelLayout,
)
from dualpace.ipc.bell import Bell
from dualpace.kernels import load, publish, wait_changed

_NUMBER = 0
_ANSWER = CALL.fields["answer"][1] // 4 if CALL.fields else 0


@dataclass(frozen=True, slots=True)
class AssistResult:
    """What the last call of an iteration gives for a row: a token, or why there is none."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    reason: FinishReason = FinishReason.ERROR
    message: str = ""


class AssistChannel:
    """Views of one channel. Tensors are raw bytes here: uint8 [rows * heads * head_dim * size]."""

    def __init__(
        self,
        region: npt.NDArray[np.uint8],
        layout: ChannelLayout,
        geometry: AssistGeometry,
        device_bell: Bell,
    ) -> None:
        def view(offset: int, count: int, dtype: np.dtype) -> npt.NDArray:  # type: ignore[type-arg]
            return region[offset : offset + count * dtype.itemsize].view(dtype)

        self.geometry = geometry
        self._call = view(layout.call, 1, CALL)
        self._words: npt.NDArray[np.int32] = view(
            layout.call, CALL.itemsize // 4, np.dtype(np.int32)
        )
        self.rows = view(layout.rows, geometry.rows, ROW)
        size = geometry.rows * geometry.head_dim * geometry.itemsize
        byte = np.dtype(np.uint8)
        self.attention = view(layout.attention, size * geometry.num_heads, byte)
        self.q = view(layout.q, size * geometry.num_heads, byte)
        self.k = view(layout.k, size * geometry.num_kv_heads, byte)
        self.v = view(layout.v, size * geometry.num_kv_heads, byte)
        self._results = view(layout.results, geometry.rows, RESULT)
        self._bell = device_bell

    # The host's side.

    @property
    def free(self) -> bool:
        """Whether every call was answered, so that another may be made."""
        return load(self._words, _NUMBER) == load(self._words, _ANSWER)

    def call(self, boundary: int, rows: int) -> None:
        """Ask for the stages at a boundary; what they need stands in the channel."""
        number = load(self._words, _NUMBER)
        self._call["boundary"] = boundary
        self._call["rows"] = rows
        publish(self._words, _NUMBER, number + 1)
        self._bell.ring()

    def wait(self, timeout_s: float, *, spin_s: float = 0.0) -> bool:
        """Wait for the open call's answer. False: it did not come in time, or it failed."""
        number = load(self._words, _NUMBER)
        answer = load(self._words, _ANSWER)
        if answer != number:
            answer = wait_changed(
                self._words,
                _ANSWER,
                answer,
                spin_ns=int(spin_s * 1e9),
                timeout_ns=int(timeout_s * 1e9),
            )
        return answer == number and int(self._call["status"][0]) == STATUS_DONE

    def results(self, rows: int) -> list[AssistResult]:
        """Return what the last call gave."""
        return [_decode_result(record) for record in self._results[:rows]]

    # The device's side.

    @property
    def waiting(self) -> bool:
        """Whether the host has called and not been answered."""
        return not self.free

    @property
    def boundary(self) -> int:
        """Of the open call."""
        return int(self._call["boundary"][0])

    @property
    def num_rows(self) -> int:
        """Of the open call."""
        return int(self._call["rows"][0])

    def answer(self, status: int, device_s: float) -> None:
        """Answer the open call; what it asked for stands in the channel."""
        self._call["status"] = status
        self._call["device_ns"] = int(device_s * 1e9)
        publish(self._words, _ANSWER, load(self._words, _NUMBER))

    def put_results(self, results: Sequence[AssistResult]) -> None:
        """Enter what the last call gives, row by row."""
        for record, result in zip(self._results, results, strict=False):
            _encode_result(record, result)


def _encode_result(record: np.void, result: AssistResult) -> None:
    if result.token_id is None:
        record["kind"], record["reason"] = 0, result.reason
        record["message"] = result.message.encode()[:MESSAGE_BYTES]
        return
    record["kind"], record["token_id"] = 1, result.token_id
    logprobs = result.logprobs
    if logprobs is not None:
        count = len(logprobs.top)
        record["kind"], record["chosen"], record["num_top"] = 2, logprobs.chosen, count
        record["rank"] = logprobs.rank or 0
        record["top_ids"][:count] = [token_id for token_id, _ in logprobs.top]
        record["top_logprobs"][:count] = [logprob for _, logprob in logprobs.top]


def _decode_result(record: np.void) -> AssistResult:
    kind = int(record["kind"])
    if kind == 0:
        message = bytes(record["message"]).decode(errors="ignore")
        return AssistResult(None, reason=FinishReason(int(record["reason"])), message=message)
    logprobs = None
    if kind == 2:
        count = int(record["num_top"])
        pairs = zip(
            record["top_ids"][:count].tolist(),
            record["top_logprobs"][:count].tolist(),
            strict=True,
        )
        rank = int(record["rank"]) or None
        logprobs = TokenLogprobs(float(record["chosen"]), tuple(pairs), rank)
    return AssistResult(int(record["token_id"]), logprobs)
