"""Taking up, from the arena's sequence table, what an earlier process of this engine owned.

The table says which requests those are, how far each has come and where its KV lies; all of it was
committed token by token. Nothing is computed again. A record that contradicts another is dropped:
its gateway will be told that nobody owns the request.
"""

import logging

from dualpace.core.blocks import blocks_for
from dualpace.core.errors import CapacityError, ProtocolError
from dualpace.core.request import Request
from dualpace.ipc.arena import Arena
from dualpace.scheduling.cpu import HostScheduler, TableRecord

log = logging.getLogger(__name__)


def resume_from(arena: Arena, scheduler: HostScheduler) -> list[Request]:
    """Enter every request of the table into a fresh scheduler; returns them.

    They are parked until their gateway says that it still wants them. What was lent to a gpu-engine
    that may live is kept from use.
    """
    for slot in arena.sequences.lent_slots():
        _quarantine(arena, scheduler, slot)
    resumed: list[Request] = []
    for slot in arena.sequences.owned_slots():
        try:
            resumed.append(_resume(arena, scheduler, slot))
        except (CapacityError, ProtocolError) as error:
            log.warning("slot %d is not resumed: %s", slot, error)
            arena.sequences.close(slot)
    return resumed


def _quarantine(arena: Arena, scheduler: HostScheduler, slot: int) -> None:
    num_tokens = arena.sequences.num_tokens(slot)
    count = blocks_for(num_tokens, arena.geometry.block_size)
    try:
        scheduler.quarantine(slot, arena.block_tables[slot, :count].tolist())
    except CapacityError:
        log.exception("slot %d cannot be kept from use", slot)
        arena.sequences.close(slot)


def _resume(arena: Arena, scheduler: HostScheduler, slot: int) -> Request:
    request, num_tokens, return_at = arena.sequences.read(slot)
    if not 0 < num_tokens <= request.max_total_tokens:
        raise CapacityError(f"{num_tokens} tokens are none of a request of its size")
    last_token = arena.token_at(slot, num_tokens - 1)
    if num_tokens > request.prompt_tokens and request.finish_reason(num_tokens, last_token):
        # The process died before it could say so. Its gateway has the request ended again.
        raise CapacityError("its request had come to its end")
    blocks = arena.block_tables[slot, : blocks_for(num_tokens, arena.geometry.block_size)]
    scheduler.resume(TableRecord(slot, request, num_tokens, return_at, blocks.tolist(), last_token))
    return request
