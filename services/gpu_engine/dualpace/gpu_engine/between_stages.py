"""How the gpu-engine hears the host between the stages of its own iteration.

A request that comes back in the middle of an iteration is copied to the device while that goes on,
so that the next one has it; if it is better off where it came from, it is given straight back. All
else waits for the loop. Runs in the loop's thread.
"""

from typing import get_args

from dualpace.core.messages import HandoffEvent
from dualpace.ipc.channel import GpuInput, Inbox
from dualpace.scheduling.gpu import GpuScheduler


class HostHearing:
    """Takes the host's words out of an inbox early, as long as they come in order."""

    def __init__(self, inbox: Inbox[GpuInput], scheduler: GpuScheduler) -> None:
        self._inbox = inbox
        self._scheduler = scheduler
        self._held: list[GpuInput] = []

    def drain(self) -> list[GpuInput]:
        """Return everything that has arrived and was not taken, oldest first."""
        held, self._held = self._held, []
        return held + self._inbox.drain()

    def listen(self) -> bool:
        """Take what the host says, up to the first message of another kind; whether it did."""
        if not self._inbox.flag[0]:
            return False
        heard = False
        for item in self._inbox.drain():
            if not self._held and isinstance(item, get_args(HandoffEvent)):
                self._scheduler.host_event(item)
                heard = True
            else:
                self._held.append(item)
        return heard
