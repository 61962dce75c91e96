"""Assist call by call confirms what runs of whole workloads take for granted."""

import pytest

from dualpace.lab.rehearsal import Rehearsal
from dualpace.lab.systems import Hardware
from dualpace.scheduling.cost import GpuWork
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts, offer

COSTS = Hardware().costs()
LOADS = {
    "idle": None,
    "decodes": GpuWork(20, 20, 20, 24_000, 0),
    "decodes and a chunk": GpuWork(180, 20, 20, 24_000, 160 * 600),
    "a long prompt": GpuWork(2048, 20, 20, 20_000, 2048 * 1000),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize(("rows", "context"), [(128, 1200), (255, 1200), (255, 600)])
def test_iterations_take_what_is_forecast(
    load: str, micro_batches: int, rows: int, context: int
) -> None:
    """The host's time within 5 %; the GPU's no more than 5 % above: calls may share a batch."""
    routes = RouteCosts(COSTS, micro_batches=micro_batches)
    work = LOADS[load]
    forecast = routes.forecast(
        Route.ASSIST, rows, rows * context, offer(COSTS.gpu, work, share=1.0)
    )
    found = Rehearsal(COSTS, routes, rows, context, work).run(6)
    assert found.host_s == pytest.approx(forecast.host_s, rel=0.05)
    assert found.gpu_s <= 1.05 * forecast.gpu_s


def test_two_micro_batches_ride_along_and_one_seldom_can() -> None:
    one, two = (
        Rehearsal(COSTS, RouteCosts(COSTS, micro_batches=n), 255, 1200, LOADS["decodes"]).run(6)
        for n in (1, 2)
    )
    assert one.riding_share < 0.05 < 0.15 < two.riding_share
    assert two.host_s < 0.95 * one.host_s
