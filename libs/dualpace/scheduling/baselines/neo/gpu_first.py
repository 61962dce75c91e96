"""The routine behind `always_use_gpu`: decodes stay on the GPU, and swap when it is full."""

from typing import TYPE_CHECKING

from dualpace.core.sequence import Sequence
from dualpace.scheduling.baselines.neo.plan import NeoBatch, NeoPlan

if TYPE_CHECKING:
    from dualpace.scheduling.baselines.neo.scheduler import NeoScheduler


def schedule(scheduler: "NeoScheduler") -> NeoPlan:
    """Decide one iteration: prompts only while nobody waits on the CPU."""
    swap_out = _swap_out(scheduler)
    if not scheduler.cpu:
        gdec = tuple(scheduler.gpu)
        gprf = _admit(scheduler)
        scheduler.launch(gprf, [])
        batch = NeoBatch(gprf=tuple(gprf), gdec=gdec)
        if gprf or gdec:
            return NeoPlan((batch,), swap_out)
        return NeoPlan((), swap_out)
    swap_in = () if swap_out else _swap_in(scheduler)
    batches = (NeoBatch(gdec=tuple(scheduler.gpu)),) if scheduler.gpu else ()
    return NeoPlan(batches, swap_out, swap_in)


def _used(scheduler: "NeoScheduler") -> int:
    return sum(map(scheduler.blocks, scheduler.gpu))


def _swap_out(scheduler: "NeoScheduler") -> tuple[Sequence, ...]:
    config = scheduler.config
    used = _used(scheduler)
    victims: list[Sequence] = []
    while scheduler.gpu and (
        len(scheduler.gpu) > config.max_batch_size or used > config.resident_blocks
    ):
        victims.insert(0, scheduler.gpu.pop())
        used -= scheduler.blocks(victims[0])
    for victim in victims:  # the latest ends up in front
        scheduler.cpu.appendleft(victim)
    return tuple(victims)


def _admit(scheduler: "NeoScheduler") -> list[Sequence]:
    config = scheduler.config
    rows, width, used = len(scheduler.gpu), len(scheduler.gpu), _used(scheduler)
    prompts: list[Sequence] = []
    for sequence in scheduler.waiting:
        rows += 1
        width += sequence.num_tokens
        used += scheduler.blocks(sequence)
        fits = rows <= config.max_batch_size and width <= config.max_tokens_in_batch
        if not fits or used > config.resident_blocks:
            break
        prompts.append(sequence)
    return prompts


def _swap_in(scheduler: "NeoScheduler") -> tuple[Sequence, ...]:
    config = scheduler.config
    used = _used(scheduler)
    arrivals: list[Sequence] = []
    while scheduler.cpu and len(scheduler.gpu) + 1 <= config.max_batch_size:
        used += scheduler.blocks(scheduler.cpu[0])
        if used > config.resident_blocks:
            break
        arrivals.append(scheduler.cpu.popleft())
        scheduler.gpu.append(arrivals[-1])
    return tuple(arrivals)
