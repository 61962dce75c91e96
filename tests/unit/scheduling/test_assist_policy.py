"""Assist: when it pays, when a call is served, and how much of the GPU it may take."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from dualpace.core.assist import CLOSED, AssistTerms
from dualpace.scheduling.assist import AssistCall, AssistDesk, Sweep, assist_s
from dualpace.scheduling.cost import NodeCosts
from dualpace.scheduling.host_policy import UNLIMITED, ProfiledHost
from dualpace.scheduling.lease import AssistLease
from dualpace.scheduling.micro_batches import balanced_split
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.route import Route
from dualpace.scheduling.routing import RouteCosts, Router

COSTS = NodeCosts(preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b"))
IDLE = AssistTerms(open=True)
BUSY = AssistTerms(open=True, price=1000.0, stage_s=7e-4, sweep_s=0.024, rows=150)


@given(st.lists(st.integers(1, 10_000), max_size=200), st.integers(1, 6))
def test_parts_hold_every_row_once_and_differ_by_about_a_row(kv: list[int], parts: int) -> None:
    sizes = balanced_split(kv, parts)
    assert sum(sizes) == len(kv)
    assert all(sizes)
    assert len(sizes) == min(parts, len(kv))
    if len(sizes) > 1 and len(kv) >= 2 * parts:
        ends = list(itertools.accumulate(sizes))
        for part, end in enumerate(ends[:-1], start=1):
            ideal = sum(kv) * part / parts
            # Each part has a row at least, even where a larger one before it took its share.
            forced = sizes[part - 1] == 1 or end == len(kv) - (parts - part)
            assert forced or abs(sum(kv[:end]) - ideal) <= max(kv) / 2


def test_a_part_ends_before_a_large_row_where_that_is_nearer_to_even() -> None:
    assert balanced_split([1, 1, 2, 7, 7, 1, 1, 1], 4) == (3, 1, 1, 3)


@given(
    st.floats(0.05, 0.9),
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(1e-4, 5e-3)), min_size=1, max_size=60),
)
def test_a_lease_grants_no_more_than_its_share(
    share: float, calls: list[tuple[float, float]]
) -> None:
    window_s = 0.25
    lease = AssistLease(share=share, window_s=window_s)
    now = taken = 0.0
    for gap, seconds in calls:
        now += gap
        if lease.granted(now):
            lease.charge(seconds)
            taken += seconds
        else:
            later = lease.next_grant_s(now)
            assert later > now
            assert lease.granted(later)
            now = later
    longest = max(seconds for _, seconds in calls)
    assert taken <= share * (window_s + now) + longest + 1e-6


def test_a_lease_of_nothing_grants_nothing() -> None:
    lease = AssistLease(share=0.0)
    assert not lease.granted(5.0)
    assert lease.next_grant_s(5.0) == math.inf


def test_large_batches_go_to_the_gpu_and_small_ones_only_while_it_is_idle() -> None:
    def route(rows: int, terms: AssistTerms) -> Route:
        return Router(RouteCosts(COSTS)).choose(rows, rows * 1200, terms).route

    assert route(200, BUSY) is Route.ASSIST
    assert route(2, BUSY) is Route.HOST
    assert route(2, IDLE) is Route.ASSIST
    assert route(200, CLOSED) is Route.HOST


@given(st.integers(1, 600), st.integers(16, 3000), st.floats(0, 3000))
def test_the_router_never_chooses_what_costs_more_than_it_gains(
    rows: int, context: int, price: float
) -> None:
    """The rule `rows (1 - T/T_host) > price G`, without hysteresis."""
    terms = AssistTerms(open=True, price=price, stage_s=7e-4, sweep_s=0.024, rows=100)
    costs = RouteCosts(COSTS)
    local = costs.forecast(Route.HOST, rows, rows * context, terms)
    lent = costs.forecast(Route.ASSIST, rows, rows * context, terms)
    gains = rows * (1 - lent.host_s / local.host_s) > price * lent.gpu_s
    chosen = Router(costs, hysteresis=0.0).choose(rows, rows * context, terms).route
    assert chosen is (Route.ASSIST if gains else Route.HOST)


@given(st.integers(0, 400), st.integers(0, 400_000))
def test_admission_keeps_the_predicted_iteration_within_the_target(rows: int, kv: int) -> None:
    costs = RouteCosts(COSTS)
    policy = ProfiledHost(costs, Router(costs), itl_target_s=0.4)
    room = policy.open_kv_tokens(rows, kv)
    assert 0 <= room < UNLIMITED
    if room:
        predicted = costs.forecast(Route.HOST, rows + 1, kv + room, CLOSED).host_s
        assert predicted <= 0.4 * 1.001


def sweep(boundary: int, at: float) -> Sweep:
    return Sweep(boundary, at, 7e-4, rows=150, sampled_rows=20, rest_s=1e-3)


def call(boundary: int, *, idle_at_s: float, micro_batch: int = 0) -> AssistCall:
    return AssistCall(micro_batch, boundary, 100, arrived_s=0.0, idle_at_s=idle_at_s)


def desk(*, riding: bool = True) -> AssistDesk:
    return AssistDesk(COSTS.gpu, AssistLease(share=1.0), riding=riding)


def test_a_call_rides_where_the_sweep_comes_by_in_time() -> None:
    patient = desk()
    patient.arrive(call(8, idle_at_s=1.0))
    assert patient.next_stop(sweep(3, 0.0)) == 8
    assert patient.serve(0.0, sweep(3, 0.0)).empty
    service = patient.serve(3.5e-3, sweep(8, 3.5e-3))
    assert [c.boundary for c in service.riding] == [8]
    assert 0 < service.riding_s < assist_s(COSTS.gpu, 8, 100, with_pre_attention=True)
    assert not patient.waiting


def test_a_call_whose_host_would_stand_idle_is_served_at_the_next_boundary() -> None:
    for hurried in (desk(), desk(riding=False)):
        hurried.arrive(call(8, idle_at_s=0.0))
        assert hurried.next_stop(sweep(3, 0.0)) == 3
        service = hurried.serve(0.0, sweep(3, 0.0))
        assert service.alone_s == assist_s(COSTS.gpu, 8, 100, with_pre_attention=True)


def test_calls_at_one_boundary_share_a_batch_and_an_idle_gpu_serves_at_once() -> None:
    shared = desk()
    shared.arrive(call(5, idle_at_s=0.0))
    shared.arrive(call(5, idle_at_s=0.0, micro_batch=1))
    service = shared.serve(0.0, None)
    assert len(service.alone) == 2
    assert service.alone_s < 2 * assist_s(COSTS.gpu, 5, 100, with_pre_attention=True)


def test_a_withdrawn_call_is_not_served() -> None:
    empty = desk()
    empty.arrive(call(5, idle_at_s=0.0))
    empty.withdraw()
    assert empty.next_stop(sweep(0, 0.0)) is None
    assert empty.serve(0.0, None).empty
