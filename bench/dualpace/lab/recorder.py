"""What clients of a simulated node see, token by token, and how busy its engines were.

It checks as it records: tokens of a request come in order, none is lost, and none comes after the
end. It does not know who schedules.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dualpace.core.messages import EngineEvent, StartEvent, TokenEvent
from dualpace.lab.workload import Arrival


@dataclass(slots=True)
class Track:
    """One request's tokens."""

    arrival: Arrival
    times_s: list[float] = field(default_factory=list)
    host_step: int = 0
    """Steps of the host that were complete when it last made a token of it, or got it."""


class Recorder:
    """Times of all tokens."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self.tracks = {a.request_id: Track(a) for a in arrivals}
        self.finished = 0
        self.host_gaps_s: list[float] = []
        """Between two tokens of one request, the later one made on the host."""
        self.host_steps: list[tuple[float, float, int]] = []
        """Begin, end and rows of each iteration in which the host made tokens."""
        self.gpu_steps: list[tuple[float, int, int]] = []
        """End, decode rows and prompt rows of each GPU iteration."""
        self.gpu_busy_s = 0.0
        self.assist_s = 0.0
        self.longest_host_stall_s = 0.0
        self.most_host_steps_waited = 0
        self._host_mark_s: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every request has ended."""
        return self.finished == len(self.tracks)

    def receive(self, events: Iterable[EngineEvent], now: float, *, host: bool = False) -> None:
        """Take what an engine sends to gateways. Repeated tokens are dropped, as gateways do."""
        for event in events:
            if isinstance(event, StartEvent):
                continue
            track = self.tracks[event.request_id]
            times = track.times_s
            if isinstance(event, TokenEvent):
                ahead = event.position - track.arrival.prompt_tokens - len(times)
                assert ahead <= 0, "a token is missing"
                if ahead == 0:
                    if host:
                        self._host_token(track, now)
                    times.append(now)
            else:
                assert len(times) == track.arrival.output_tokens, f"ended early: {event}"
                self.finished += 1

    def given_to_host(self, request_id: int) -> None:
        """Note that the host was sent a request's commit."""
        self.tracks[request_id].host_step = len(self.host_steps)

    def host_step(self, begin_s: float, end_s: float, rows: int) -> None:
        """Note an iteration of the host, before its tokens are received."""
        self.host_steps.append((begin_s, end_s, rows))
        self.host_residents(rows, end_s)
        self._host_mark_s = end_s

    def host_residents(self, count: int, now: float) -> None:
        """Note that `count` requests live on the host; a stall lasts from here or the last step."""
        if self._host_mark_s is not None:
            self.longest_host_stall_s = max(self.longest_host_stall_s, now - self._host_mark_s)
        if count == 0:
            self._host_mark_s = None
        elif self._host_mark_s is None:
            self._host_mark_s = now

    def _host_token(self, track: Track, now: float) -> None:
        if track.times_s:  # the host may compute a prompt's last token, too
            self.host_gaps_s.append(now - track.times_s[-1])
        waited = len(self.host_steps) - track.host_step
        self.most_host_steps_waited = max(self.most_host_steps_waited, waited)
        track.host_step = len(self.host_steps)
