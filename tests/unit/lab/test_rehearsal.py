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


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize(("rows", "context"), [(1, 64), (2, 1200), (8, 200), (32, 200), (64, 600)])
def test_small_batches_go_to_an_idle_gpu_in_the_fewest_parts_that_pay(
    micro_batches: int, rows: int, context: int
) -> None:
    """It reads its weights once for each part: two take twice as long where little else is done."""
    terms = offer(COSTS.gpu, None, share=1.0)
    routes = RouteCosts(COSTS, micro_batches=micro_batches)
    forecast = routes.forecast(Route.ASSIST, rows, rows * context, terms)
    found = Rehearsal(COSTS, routes, rows, context, None).run(6)
    assert found.host_s == pytest.approx(forecast.host_s, rel=0.05)
    alone = RouteCosts(COSTS, micro_batches=1).forecast(Route.ASSIST, rows, rows * context, terms)
    assert forecast.host_s <= alone.host_s
    if context * rows < 2000:
        assert forecast.micro_batches == 1


def test_two_micro_batches_ride_along_and_one_seldom_can() -> None:
    one, two = (
        Rehearsal(COSTS, RouteCosts(COSTS, micro_batches=n), 255, 1200, LOADS["decodes"]).run(6)
        for n in (1, 2)
    )
    assert one.riding_share < 0.05 < 0.15 < two.riding_share
    assert two.host_s < 0.95 * one.host_s
