"""A node without engines: generations follow a script, and whatever happens to them is on record.

It keeps the contract of `Backend` as engines do, end tokens and limits included, so a script only
says which tokens would come. It runs on one event loop; `let_go` alone may be called from other
threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualpace.core.errors import DualPaceError, PeerLostError
from dualpace.core.messages import TokenLogprobs
from dualpace.core.request import Engine, FinishReason
from dualpace.gateway.engines.backend import (
    EngineState,
    GeneratedToken,
    GenerationEnd,
    GenerationEvent,
    GenerationParams,
    GenerationStart,
    NodeInfo,
    ScoredPrompt,
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing comes for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """The engine begins with the request, which has waited so long."""

    waited_s: float


@dataclass(frozen=True, slots=True)
class Burst:
    """Several tokens come at once."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing comes until `FakeBackend.let_go` is called, or the generation is cancelled."""


@dataclass(frozen=True, slots=True)
class End:
    """The engine ends the generation now."""

    reason: FinishReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Break:
    """Iterating raises; None: it stops without a GenerationEnd, against the contract."""

    error: Exception | None


Step = int | Burst | Start | Pause | Hold | End | Break
"""An int is a token id."""

Script = Callable[[tuple[int, ...], GenerationParams], Iterable[Step]]
"""What a generation does, from its prompt and parameters."""


def always(*steps: Step) -> Script:
    """Return a script that does the same for every generation."""

    def script(_prompt: tuple[int, ...], _params: GenerationParams) -> Iterable[Step]:
        return steps

    return script


@dataclass(eq=False)
class FakeGeneration:
    """One generation, and what became of it."""

    prompt: tuple[int, ...]
    params: GenerationParams
    steps: Iterable[Step]
    released: asyncio.Event
    num_tokens: int = 0
    num_cancels: int = 0
    ended: FinishReason | None = None
    begun: bool = False
    """Whether anyone has iterated it."""
    closed: bool = False
    """Whether the iterator is over, by its end or by being closed."""
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self) -> None:
        """Give the generation up."""
        self.num_cancels += 1
        self._cancelled.set()

    def __aiter__(self) -> AsyncIterator[Sequence[GenerationEvent]]:
        return self._events()

    async def _events(self) -> AsyncIterator[Sequence[GenerationEvent]]:
        self.begun = True
        try:
            scores = self._prompt_scores()
            if scores:
                yield [ScoredPrompt(1, scores)]
            for step in self.steps:
                await asyncio.sleep(0)
                if isinstance(step, int | Burst):
                    tokens, end = self._tokens((step,) if isinstance(step, int) else step.token_ids)
                    yield tokens
                elif isinstance(step, Start):
                    yield [GenerationStart(step.waited_s)]
                    end = None
                else:
                    end = await self._other(step)
                if self._cancelled.is_set():
                    end = End(FinishReason.CANCELLED)
                if end is not None:
                    self.ended = end.reason
                    yield [GenerationEnd(end.reason, end.message)]
                    return
            raise AssertionError("the script has too few steps for this generation to end")
        except _StopSilentlyError:
            return
        finally:
            self.closed = True

    async def _other(self, step: Pause | Hold | End | Break) -> End | None:
        match step:
            case Pause(seconds):
                await self._wait(asyncio.sleep(seconds))
            case Hold():
                await self._wait(self.released.wait())
            case Break(None):
                raise _StopSilentlyError
            case Break(error):
                assert error is not None
                raise error
            case End():
                return step
        return None

    async def _wait(self, something: Coroutine[Any, Any, object]) -> None:
        """Wait for something or for being cancelled, whichever is first."""
        tasks = [
            asyncio.ensure_future(something),
            asyncio.ensure_future(self._cancelled.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _tokens(self, token_ids: Iterable[int]) -> tuple[list[GeneratedToken], End | None]:
        """Return tokens, as many as may come, and the end if it follows."""
        tokens = []
        for token_id in token_ids:
            tokens.append(self._token(token_id))
            end = self._end_after(token_id)
            if end is not None:
                return tokens, end
        return tokens, None

    def _token(self, token_id: int) -> GeneratedToken:
        position = len(self.prompt) + self.num_tokens
        engine = Engine(self.num_tokens % 2)  # as if the request moved at every step
        self.num_tokens += 1
        assisted = self.num_tokens % 4 == 2  # every other one of the cpu-engine's
        return GeneratedToken(position, token_id, engine, self._logprobs(token_id), assisted)

    def _prompt_scores(self) -> tuple[TokenLogprobs, ...]:
        """Return made-up figures: the prompt's token at -0.25, second of those listed."""
        count = self.params.prompt_logprobs
        if count is None:
            return ()
        return tuple(
            TokenLogprobs(
                -0.25, tuple((token_id + 1 - i, -0.2 - 0.05 * i) for i in range(count)), 2
            )
            for token_id in self.prompt[1:]
        )

    def _logprobs(self, token_id: int) -> TokenLogprobs | None:
        """Return made-up figures: the chosen token at -0.5, the ids after it lower."""
        count = self.params.sampling.logprobs
        if count is None:
            return None
        return TokenLogprobs(-0.5, tuple((token_id + i, -0.5 - i) for i in range(count)))

    def _end_after(self, token_id: int) -> End | None:
        if token_id in self.params.stop_token_ids:
            return End(FinishReason.STOP)
        if self.num_tokens >= self.params.max_tokens:
            return End(FinishReason.LENGTH)
        return None


class _StopSilentlyError(Exception):
    pass


class FakeBackend:
    """A `Backend` whose generations follow `script`. Attributes may be set at any time."""

    def __init__(
        self, script: Script, *, max_model_len: int = 2048, vocab_size: int = 49152
    ) -> None:
        self.script = script
        self.info = NodeInfo(
            max_model_len=max_model_len, vocab_size=vocab_size, max_request_bytes=1 << 16
        )
        self.generations: list[FakeGeneration] = []
        self.gauges: Mapping[Engine, Mapping[str, float]] = {engine: {} for engine in Engine}
        self.unready: str | None = None
        self.lost = False
        """Whether `generate` refuses."""
        self.start_error: DualPaceError | None = None
        self.started = False
        self.stopped = False
        self._released = asyncio.Event()
        self.failure: asyncio.Queue[Exception] = asyncio.Queue()
        """Gets what makes it impossible to serve once started."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Connect, or raise `start_error`."""
        self._loop = asyncio.get_running_loop()
        if self.start_error is not None:
            raise self.start_error
        self.started = True

    async def stop(self) -> None:
        """Disconnect."""
        self.stopped = True

    async def failed(self) -> Exception:
        """Wait for a `failure`."""
        return await self.failure.get()

    def engines(self) -> Mapping[Engine, EngineState]:
        """Return two engines that are as well as the node."""
        return {
            engine: EngineState(connected=not self.lost, heartbeat_age_s=0.1, gauges=gauges)
            for engine, gauges in self.gauges.items()
        }

    def unready_reason(self) -> str | None:
        """Return `unready`."""
        return self.unready

    def generate(self, prompt: tuple[int, ...], params: GenerationParams) -> FakeGeneration:
        """Start a generation that follows the script."""
        if self.lost:
            raise PeerLostError("the gpu-engine is not connected")
        generation = FakeGeneration(prompt, params, self.script(prompt, params), self._released)
        self.generations.append(generation)
        return generation

    def let_go(self) -> None:
        """End every `Hold`, present and future. May be called from any thread."""
        assert self._loop is not None, "not started"
        self._loop.call_soon_threadsafe(self._released.set)

    def assert_nothing_leaked(self) -> None:
        """Assert that every generation ended by itself or was cancelled once, and holds nothing."""
        for generation in self.generations:
            by_itself = generation.ended not in {None, FinishReason.CANCELLED}
            cancels = generation.num_cancels
            assert generation.closed or not generation.begun, f"still iterated: {generation}"
            assert cancels == 0 if by_itself else cancels == 1, (
                f"{cancels} cancels, ended {generation.ended!r}"
            )
