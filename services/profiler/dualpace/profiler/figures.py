"""Draws a profile: latency curves of both sides, and where lending dense stages pays."""

import math
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualpace.core.assist import AssistTerms
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.curves import Curve
from dualpace.scheduling.profile import Profile, StageTimes
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts

STAGES = ("pre_attention", "post_attention", "head")
BATCHES = tuple(1 << i for i in range(11))
CONTEXTS = tuple(1 << i for i in range(6, 16))
_HOST, _DEVICE = "tab:blue", "tab:orange"


def draw(profile: Profile, path: Path) -> None:
    """Write a figure as PNG (or whatever the path's suffix says that matplotlib knows)."""
    with mpl.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(15, 9), layout="constrained")
        figure.suptitle(
            f"{profile.model.name}: {profile.host_name} and {profile.gpu_name}\n{sources(profile)}"
        )
        axes = figure.subplots(2, 3)
        for axis, stage in zip(axes[0], STAGES, strict=True):
            _stage(axis, profile, stage)
        _attention(axes[1][0], profile)
        _transfers(axes[1][1], profile)
        decision_chart(axes[1][2], profile)
        figure.savefig(path, dpi=110)


def sources(profile: Profile) -> str:
    """Say where the numbers come from."""
    said = profile.sources
    return (
        f"CPU {said.host.value}; device {said.gpu.value}; transfers {said.transfers.value};"
        f" assist round trip {said.assist.value}"
    )


def gains(profile: Profile) -> list[list[float]]:
    """Return an iteration's time on the CPU over that with an idle GPU: [batch][context]."""
    routes, idle = RouteCosts(NodeCosts(profile)), AssistTerms(open=True)

    def gain(rows: int, tokens: int) -> float:
        local, lent = (
            routes.forecast(route, rows, tokens, idle).host_s
            for route in (Route.HOST, Route.ASSIST)
        )
        return local / lent

    return [[gain(rows, rows * context) for context in CONTEXTS] for rows in BATCHES]


def _stage(axis: Axes, profile: Profile, stage: str) -> None:
    for stages, label, colour in _sides(profile):
        _line(axis, getattr(stages, stage), label, colour)
    axis.set(title=stage.replace("_", " "), xlabel="rows", ylabel="ms a layer")
    if stage == "head":
        axis.set_ylabel("ms an iteration")
    axis.legend()


def _attention(axis: Axes, profile: Profile) -> None:
    for stages, label, colour in _sides(profile):
        grid = stages.decode_attention
        for index, (rows, curve) in enumerate(zip(grid.rows, grid.curves, strict=True)):
            style = ("-", "--", ":", "-.")[index % 4]
            _line(axis, curve, f"{label}, {rows} rows", colour, style)
    axis.set(title="decode attention", xlabel="KV tokens, all rows", ylabel="ms a layer")
    axis.legend(fontsize=7)


def _transfers(axis: Axes, profile: Profile) -> None:
    _line(axis, profile.to_host, "to host", _HOST)
    _line(axis, profile.to_device, "to device", _DEVICE)
    axis.set(title="copies", xlabel="bytes", ylabel="ms")
    axis.legend()


def _sides(profile: Profile) -> list[tuple[StageTimes, str, str]]:
    return [(profile.host, "CPU", _HOST), (profile.gpu, "device", _DEVICE)]


def _line(axis: Axes, curve: Curve, label: str, colour: str, style: str = "-") -> None:
    wide = 1.2 if colour == _DEVICE else 2.4  # both show where they are equal
    axis.loglog(
        curve.x, curve.ms, style, color=colour, label=label, marker=".", linewidth=wide, base=2
    )


def decision_chart(axis: Axes, profile: Profile) -> None:
    """Draw which way is faster for each batch and context, the device being idle."""
    logs = [[math.log2(gain) for gain in row] for row in gains(profile)]
    most = max(0.1, *(abs(value) for row in logs for value in row))
    mesh = axis.pcolormesh(CONTEXTS, BATCHES, logs, cmap="RdYlGn", vmin=-most, vmax=most)
    axis.figure.colorbar(mesh, ax=axis, label="log2 of CPU alone / with assist")
    if min(map(min, logs)) < 0 < max(map(max, logs)):
        axis.contour(CONTEXTS, BATCHES, logs, levels=[0.0], colors="black")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set(
        title="green: assist is faster (idle device)",
        xlabel="context, tokens a request",
        ylabel="batch",
    )
