"""Limits: one suite for both stores, and what happens when the shared one is lost."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualpace.core.errors import PeerLostError
from dualpace.gateway.limits.gcra import Charge, Limit, Limiter, Verdict
from dualpace.gateway.limits.guarded import GuardedLimiter
from dualpace.gateway.limits.memory import MemoryLimiter
from dualpace.gateway.limits.redis_store import RedisLimiter
from tests.unit.gateway.redis_server import RedisServer, needs_redis

pytestmark = pytest.mark.asyncio

PATIENCE_S = 10.0
"""Where the test is about something else than the time that Redis takes."""
REQUESTS = Limit("requests", 6, 60)
TOKENS = Limit("tokens", 600, 60)


class Time:
    """Seconds that pass when the test says so, in microseconds for limiters."""

    def __init__(self) -> None:
        self.us = 1.7e15

    def __call__(self) -> float:
        return self.us

    def pass_s(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest_asyncio.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Limiter, Time]]:
    """A store of either kind, and its time."""
    now = Time()
    if request.param == "memory":
        limiter: Limiter = MemoryLimiter(now)
    else:
        url = request.getfixturevalue("redis").url
        limiter = RedisLimiter(
            url, prefix=f"test:{uuid.uuid4().hex}", now_us=now, timeout_s=PATIENCE_S
        )
    yield limiter, now
    await limiter.close()


def one(cost: int = 1, limit: Limit = REQUESTS) -> list[Charge]:
    return [Charge(limit, cost)]


async def test_so_many_at_once_then_one_by_one(store: tuple[Limiter, Time]) -> None:
    limiter, now = store
    for left in range(5, -1, -1):
        verdict = await limiter.charge("a", one())
        assert verdict.blocked_by is None
        assert verdict.states[0].remaining == left
    refused = await limiter.charge("a", one())
    assert refused.blocked_by is REQUESTS
    assert refused.retry_after_s == pytest.approx(10, abs=0.01)
    now.pass_s(9.9)
    assert (await limiter.charge("a", one())).blocked_by is REQUESTS
    now.pass_s(0.2)
    assert (await limiter.charge("a", one())).blocked_by is None
    assert (await limiter.charge("a", one())).blocked_by is REQUESTS


async def test_waiting_as_long_as_told_is_enough(store: tuple[Limiter, Time]) -> None:
    limiter, now = store
    for cost in (250, 350, 123, 1, 600):
        verdict = await limiter.charge("a", one(cost, TOKENS))
        if verdict.blocked_by is not None:
            assert verdict.retry_after_s is not None
            now.pass_s(verdict.retry_after_s)
            assert (await limiter.charge("a", one(cost, TOKENS))).blocked_by is None


async def test_a_refused_charge_takes_nothing_of_any_limit(store: tuple[Limiter, Time]) -> None:
    limiter, _ = store
    both = [Charge(REQUESTS, 1), Charge(TOKENS, 400)]
    assert (await limiter.charge("a", both)).blocked_by is None
    refused = await limiter.charge("a", both)
    assert refused.blocked_by is TOKENS
    assert [state.remaining for state in refused.states] == [5, 200]
    assert (await limiter.charge("a", one(5))).blocked_by is None


async def test_more_than_there_ever_is_never_fits(store: tuple[Limiter, Time]) -> None:
    limiter, _ = store
    verdict = await limiter.charge("a", one(601, TOKENS))
    assert verdict.blocked_by is TOKENS
    assert verdict.retry_after_s is None


async def test_clients_do_not_share(store: tuple[Limiter, Time]) -> None:
    limiter, _ = store
    assert (await limiter.charge("a", one(6))).blocked_by is None
    assert (await limiter.charge("b", one(6))).blocked_by is None
    assert (await limiter.charge("a", one())).blocked_by is REQUESTS


async def test_debts_are_paid_before_anything_else(store: tuple[Limiter, Time]) -> None:
    """Generated tokens are charged when they are there, past the limit if need be."""
    limiter, now = store
    await limiter.debit("a", one(900, TOKENS))
    refused = await limiter.charge("a", one(1, TOKENS))
    assert refused.states[0].remaining == 0
    assert refused.retry_after_s == pytest.approx(30.1, abs=0.01)
    now.pass_s(30.2)
    assert (await limiter.charge("a", one(1, TOKENS))).blocked_by is None


async def test_no_charge_is_no_question(store: tuple[Limiter, Time]) -> None:
    limiter, _ = store
    assert await limiter.charge("a", []) == Verdict(())


Step = tuple[str, int, int, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["charge", "debit"]),
        st.integers(0, 1),
        st.integers(0, 700),
        st.floats(0, 40),
    ),
    max_size=12,
)


@needs_redis
@given(STEPS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_both_stores_decide_alike(redis: RedisServer, steps: Sequence[Step]) -> None:
    now = Time()
    stores: list[Limiter] = [
        MemoryLimiter(now),
        RedisLimiter(
            redis.url, prefix=f"test:{uuid.uuid4().hex}", now_us=now, timeout_s=PATIENCE_S
        ),
    ]
    for kind, client, cost, seconds in steps:
        charges = [Charge(REQUESTS, 1), Charge(TOKENS, cost)]
        if kind == "charge":
            first, second = [await s.charge(f"c{client}", charges) for s in stores]
            assert (first.blocked_by, first.retry_after_s is None) == (
                second.blocked_by,
                second.retry_after_s is None,
            )
            for ours, theirs in zip(first.states, second.states, strict=True):
                assert ours.reset_s == pytest.approx(theirs.reset_s, abs=1e-4)
        else:
            for limiter in stores:
                await limiter.debit(f"c{client}", charges)
        now.pass_s(seconds)
    await stores[1].close()


@needs_redis
async def test_several_gateways_enforce_one_limit(redis: RedisServer) -> None:
    """By the clock of Redis, at the same moment: no more than the limit gets through."""
    prefix = f"test:{uuid.uuid4().hex}"
    replicas = [RedisLimiter(redis.url, prefix=prefix, timeout_s=PATIENCE_S) for _ in range(2)]
    slow = Limit("requests", 20, 86_400)
    for replica in replicas:
        await replica.charge("warm", one(1, slow))
    allowed = 0
    for _ in range(15):
        verdicts = await asyncio.gather(*(r.charge("a", one(1, slow)) for r in replicas))
        allowed += sum(verdict.blocked_by is None for verdict in verdicts)
    assert allowed == 20
    for replica in replicas:
        await replica.close()


@needs_redis
@pytest.mark.parametrize("deny", [False, True])
async def test_while_redis_is_down(tmp_path: Path, deny: bool) -> None:
    server = RedisServer(tmp_path)
    seconds = 0.0

    def clock() -> float:
        return seconds

    limiter = GuardedLimiter(
        RedisLimiter(server.url, timeout_s=PATIENCE_S), deny_when_down=deny, clock_s=clock
    )
    assert (await limiter.charge("a", one(6))).blocked_by is None
    assert (await limiter.charge("a", one())).blocked_by is REQUESTS
    server.stop()
    if deny:
        with pytest.raises(PeerLostError):
            await limiter.charge("a", one())
    else:
        assert (await limiter.charge("a", one(6))).blocked_by is None
        assert (await limiter.charge("a", one())).blocked_by is REQUESTS
    assert limiter.down is True
    await limiter.debit("a", one())
    server.start()
    seconds = 5.0
    assert (await limiter.charge("a", one())).blocked_by is None
    assert bool(limiter.down) is False
    await limiter.close()
    server.stop()


async def test_a_redis_that_does_not_answer_costs_a_moment_and_then_nothing() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    limiter = GuardedLimiter(RedisLimiter(f"redis://127.0.0.1:{port}/0"), deny_when_down=False)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await limiter.charge("a", one())
    assert 0.02 < loop.time() - begun < 1
    assert limiter.down
    begun = loop.time()
    for _ in range(100):
        await limiter.charge("a", one())
    assert loop.time() - begun < 0.5
    await limiter.close()
    silent.close()
    await silent.wait_closed()
