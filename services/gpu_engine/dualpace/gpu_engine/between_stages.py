"""What the gpu-engine does between the stages of its own iteration, besides lending them.

It hears the host: a request that comes back in the middle of a long iteration, and is better off
where it came from, is given straight back instead of standing still until the iteration ends. All
else waits for the loop. Runs in the loop's thread.
"""

from collections.abc import Callable
from typing import get_args

from dualpace.core.messages import HandoffEvent
from dualpace.ipc.channel import GpuInput, Inbox
from dualpace.scheduling.gpu import GpuScheduler


class HostHearing:
    """Takes the host's words out of an inbox early, as long as they come in order."""

    def __init__(
        self, inbox: Inbox[GpuInput], scheduler: GpuScheduler, publish: Callable[[], None]
    ) -> None:
        """`publish` sends what the scheduler has to tell."""
        self._inbox = inbox
        self._scheduler = scheduler
        self._publish = publish
        self._held: list[GpuInput] = []

    def drain(self) -> list[GpuInput]:
        """Return everything that has arrived and was not taken, oldest first."""
        held, self._held = self._held, []
        return held + self._inbox.drain()

    def listen(self) -> None:
        """Take what the host says, up to the first message of another kind."""
        if not self._inbox.flag[0]:
            return
        heard = False
        for item in self._inbox.drain():
            if not self._held and isinstance(item, get_args(HandoffEvent)):
                self._scheduler.host_event(item)
                heard = True
            else:
                self._held.append(item)
        if heard:
            self._scheduler.give_back()
            self._publish()
