"""The arena's Dense Assist region: bells, the device's offer, and the channels."""

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.core.request import Engine
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_channel import AssistChannel
from dualpace.ipc.assist_layout import BELLS, OFFER, assist_layout
from dualpace.ipc.bell import Bell, SharedBell


class AssistRegion:
    """Views of the region. Only for an arena whose geometry has assist rows."""

    def __init__(self, arena: Arena) -> None:
        geometry = arena.geometry.assist
        assert geometry.rows
        self._memory = arena.assist_memory
        self._layout = assist_layout(geometry)
        self._geometry = geometry
        begin = self._layout.offer
        self._offer = self._memory[begin : begin + OFFER.itemsize].view(OFFER)

    def bell(self, engine: Engine, *, spin_s: float = 0.0) -> SharedBell:
        """Return an engine's bell."""
        field = BELLS.fields
        assert field is not None
        offset = self._layout.bells + field[engine.name.lower()][1]
        return SharedBell(self._memory[offset : offset + 4].view("<i4"), spin_s=spin_s)

    def channels(self, device_bell: Bell) -> tuple[AssistChannel, ...]:
        """Return the channels; calls ring the device's bell."""
        return tuple(
            AssistChannel(self._memory, layout, self._geometry, device_bell)
            for layout in self._layout.channels
        )

    def offer(self, terms: AssistTerms) -> None:
        """Say what the device offers now. Fields are stored one by one; none depends on another."""
        record = self._offer
        record["price"], record["share"] = terms.price, terms.share
        record["stage_s"], record["sweep_s"] = terms.stage_s, terms.sweep_s
        record["rows"], record["open"] = terms.rows, terms.open

    def terms(self) -> AssistTerms:
        """Return what the device offers now."""
        record = self._offer[0]
        if not record["open"]:
            return CLOSED
        return AssistTerms(
            open=True,
            price=float(record["price"]),
            share=float(record["share"]),
            stage_s=float(record["stage_s"]),
            sweep_s=float(record["sweep_s"]),
            rows=int(record["rows"]),
        )
