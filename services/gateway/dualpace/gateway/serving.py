"""The way of every generation from its plan to its answer; replies say how it looks."""

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from dualpace.core.clock import Clock
from dualpace.gateway.choices import Choice, Delta, prompt_lengths
from dualpace.gateway.engines.generation_group import GenerationGroup
from dualpace.gateway.errors import (
    ApiError,
    ClientDisconnectedError,
    body_timed_out,
    json_response,
    model_not_found,
)
from dualpace.gateway.http.disconnect import while_connected
from dualpace.gateway.http.json_body import read_json_object
from dualpace.gateway.http.sse import EventStream
from dualpace.gateway.lifecycle import Lifecycle
from dualpace.gateway.limits.admission import AdmissionQueue
from dualpace.gateway.limits.deadline import Deadlines, client_timeout_s
from dualpace.gateway.limits.keys import KeyFile
from dualpace.gateway.limits.metering import Meter, Metering
from dualpace.gateway.limits.urgency import Urgency, urgency_of
from dualpace.gateway.replies.presentation import Presentation
from dualpace.gateway.settings import GatewaySettings
from dualpace.gateway.telemetry.metrics import Metrics
from dualpace.gateway.telemetry.observer import RequestObserver
from dualpace.gateway.telemetry.request_trace import request_trace
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.text.prompts import PromptBuilder
from dualpace.gateway.uptake import Show, Uptake
from dualpace.tracing import Tracing

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Everything that request handlers use."""

    settings: GatewaySettings
    model: ServedModel
    lifecycle: Lifecycle
    prompts: PromptBuilder
    keys: KeyFile | None
    metering: Metering
    admission: AdmissionQueue
    metrics: Metrics
    clock: Clock
    objectives: Mapping[str, int]
    """The priorities of llm-d's objectives, by name; higher is sooner."""
    tracing: Tracing | None = None

    def served_name(self, requested: str | None) -> str:
        """Return the name an answer carries. Raises ApiError 404 for a model not served."""
        if requested is None:
            return self.model.names[0]
        if requested not in self.model.names:
            raise model_not_found(requested)
        return requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request ready to run: its choices, none begun, and how to show them."""

    choices: list[Choice]
    presentation: Presentation
    stream: bool
    urgency: Urgency


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a request may use while it runs."""

    meter: Meter
    deadlines: Deadlines


class Exchange:
    """One HTTP request on its way to an answer. Counts clients that leave, by how far it was."""

    def __init__(self, gateway: Gateway, request: Request) -> None:
        self._gateway = gateway
        self._request = request
        self._arrival_s = gateway.clock.now()
        self._state = "receiving"
        state = request.state
        self._meter = gateway.metering.meter(state.client, state.headers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Admit the request. Raises ApiError 503 if the node takes none."""
        self._gateway.lifecycle.check_ready()
        with self._gateway.lifecycle.running():
            try:
                yield
            except ClientDisconnectedError:
                self._gateway.metrics.disconnected(self._state)
                raise

    async def body(self) -> dict[str, Any]:
        """Return the request's JSON object. Raises ApiError 408, 429 and those of its form."""
        settings = self._gateway.settings
        await self._meter.request()
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                body = await read_json_object(self._request, settings.max_body_bytes)
        except TimeoutError:
            raise body_timed_out(settings.body_timeout_s) from None
        self._state = "waiting"
        return body

    def urgency(self) -> Urgency:
        """Return how urgent the headers call the request. Raises ApiError 400."""
        return urgency_of(self._request.headers, self._gateway.objectives)

    def name(self, request_id: str | None) -> None:
        """Use the client's id for this request in the response, unless its header had one."""
        if request_id is not None and self._request.state.request_id is None:
            self._request.state.request_id = request_id

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the work's result; cancel it if the client leaves."""
        return await while_connected(self._request.receive, work)

    async def answer(self, job: Job) -> Response:
        """Run the job. A stream runs while it is sent; a whole answer is complete on return."""
        gateway = self._gateway
        terms = Terms(
            meter=self._meter,
            deadlines=Deadlines(
                gateway.settings.first_token_timeout_s, client_timeout_s(self._request)
            ),
        )
        observer = RequestObserver(
            gateway.metrics,
            gateway.clock,
            self._arrival_s,
            prompt_lengths(job.choices),
            job.urgency,
        )
        trace = request_trace()
        if trace is not None:
            shown = job.presentation.options
            trace.prepared(shown.model, job.choices, stream=job.stream)
            trace.answered_by(shown.reply_id)
        for choice in job.choices:
            choice.lists_tokens = job.presentation.options.lists_tokens
            choice.tokens_at_once = job.presentation.options.return_token_ids
        if job.stream:
            return EventStream(
                generate(gateway, job.choices, terms, observer, job.presentation.added),
                job.presentation,
                ping_interval_s=gateway.settings.ping_interval_s,
                on_disconnect=lambda: gateway.metrics.disconnected(observer.state),
            )
        try:
            whole = await self.while_connected(_collect(gateway, job, terms, observer))
        finally:
            self._state = observer.state
        return json_response(whole)


async def generate(
    gateway: Gateway,
    choices: Sequence[Choice],
    terms: Terms,
    observer: RequestObserver,
    show: Show[T],
) -> AsyncGenerator[list[T], None]:
    """Generate every choice; yield what `show` makes of events, of those that come at once."""
    plans = [choice.plan for choice in choices]
    try:
        await terms.meter.prompt(_prompt_tokens(choices))
        with gateway.admission.entered(plans) as waiting:
            async with GenerationGroup(gateway.lifecycle.backend, plans) as group:
                observer.submitted()
                with (
                    gateway.lifecycle.running(),
                    gateway.lifecycle.abortable(group),
                    terms.deadlines.over(group) as first_token,
                ):
                    uptake = Uptake(
                        choices,
                        group,
                        show,
                        observer=observer,
                        waiting=waiting,
                        first_token=first_token,
                    )
                    async for index, events in group:
                        shown = uptake.take(index, events)
                        if shown:
                            yield shown
    except (CancelledError, GeneratorExit):
        observer.given_up("abort")
        raise
    except Exception as error:
        if isinstance(error, ApiError) and error.code == "deadline_exceeded":
            gateway.metrics.refused("deadline")
        observer.given_up("error")
        raise
    finally:
        observer.over(choices)
        terms.meter.generated(sum(choice.num_tokens for choice in choices))


def _prompt_tokens(choices: Sequence[Choice]) -> int:
    """Return the tokens of its prompts, each counted once."""
    prompts = {id(choice.plan.prompt): len(choice.plan.prompt.token_ids) for choice in choices}
    return sum(prompts.values())


async def _collect(
    gateway: Gateway, job: Job, terms: Terms, observer: RequestObserver
) -> dict[str, Any]:
    shown: list[list[Delta]] = [[] for _ in job.choices]

    def keep(choice: Choice, delta: Delta | None) -> None:
        if delta is not None:
            shown[choice.plan.index].append(delta)

    nothing: AsyncGenerator[list[None], None] = generate(
        gateway, job.choices, terms, observer, keep
    )
    async with aclosing(nothing):
        async for _ in nothing:
            pass
    for choice in job.choices:
        shown[choice.plan.index].append(Delta("", choice.remaining()))
    return job.presentation.whole(shown)
