"""How an engine shows that its loop is alive, and what it is doing: a heartbeat and a status."""

from collections.abc import Callable, Mapping

from dualpace.core.clock import Clock
from dualpace.ipc.channel import GatewayPort
from dualpace.ipc.heartbeat import Heartbeat
from dualpace.pinning import pinning_gauges

STATUS_INTERVAL_S = 0.25
"""How often gateways hear of an engine; its loop must come by as often, idle or not."""


class Pulse:
    """Beats once an iteration, from the loop's own thread: a loop that hangs falls silent."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        gateways: GatewayPort,
        clock: Clock,
        gauges: Callable[[], Mapping[str, float]],
    ) -> None:
        self._heartbeat = heartbeat
        self._gateways = gateways
        self._clock = clock
        self._gauges = gauges
        self._next_status_s = 0.0
        self.steps = 0
        """Iterations that had work."""
        heartbeat.start(clock.now())

    def beat(self, *, busy: bool) -> None:
        """Note an iteration; tell the gateways, if they are due."""
        now = self._clock.now()
        self.steps += busy
        self._heartbeat.beat(now, busy=busy, steps=self.steps)
        if now >= self._next_status_s:
            self._next_status_s = now + STATUS_INTERVAL_S
            self._gateways.post_status({**self._gauges(), **pinning_gauges()})
