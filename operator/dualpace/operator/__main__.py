"""Entry point of the operator: settings, wiring, start and stop."""

import asyncio
import logging
import sys
import time

import kopf

from dualpace.core.process import StopRequest
from dualpace.core.service import service_main
from dualpace.operator.client import ApiClient
from dualpace.operator.controller import Controller
from dualpace.operator.drift import DriftWatch, fetch_page
from dualpace.operator.errors import ApiError, ClusterError
from dualpace.operator.handlers import kopf_settings, login, registry
from dualpace.operator.model import API_VERSION
from dualpace.operator.settings import OperatorSettings

log = logging.getLogger("dualpace.operator")


def main() -> int:
    """Run the service; returns its exit status."""
    return service_main("operator", OperatorSettings, _serve)


def _serve(settings: OperatorSettings, stop: StopRequest) -> None:
    stop.install_signals()
    for noisy in ("kopf.objects", "kopf.activities"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    asyncio.run(_run(settings, stop))
    log.info("operator stops")


async def _run(settings: OperatorSettings, stop: StopRequest) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def on_stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    stop.on_stop(on_stop)
    async with ApiClient(login) as client:
        await _require_crds(client, settings.crd_timeout_s, stop)
        controller = Controller(
            client,
            settings.images,
            namespaces=settings.namespace_list,
            resync_s=settings.resync_s,
            clock=time.monotonic,
        )
        endpoint = f"http://0.0.0.0:{settings.health_port}/healthz"
        watching = kopf.operator(
            registry=registry(controller, max_silence_s=settings.max_silence_s),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not settings.namespace_list,
            namespaces=settings.namespace_list,
            liveness_endpoint=endpoint if settings.health_port else None,
            stop_flag=stopped,
        )
        reconciling = asyncio.create_task(controller.run())
        listening = asyncio.create_task(_listen(controller, settings.drift_interval_s))
        watching_task = asyncio.create_task(watching)
        log.info("operator runs")
        # Neither is of use without the other: the first to end, by a bug too, ends the process.
        # Signals are kopf's from here on; it returns when one comes.
        done, _ = await asyncio.wait(
            (reconciling, watching_task, listening), return_when=asyncio.FIRST_COMPLETED
        )
        reconciling.cancel()
        listening.cancel()
        stopped.set()
        await asyncio.gather(reconciling, watching_task, listening, return_exceptions=True)
        for task in done:
            task.result()


async def _listen(controller: Controller, interval_s: float) -> None:
    """Ask serving pods about drift, for ever, or do nothing as long."""
    if interval_s:
        await DriftWatch(controller.store, fetch_page, interval_s=interval_s).run()
    await asyncio.Event().wait()


async def _require_crds(client: ApiClient, timeout_s: float, stop: StopRequest) -> None:
    """Wait for the custom resources. Raises ClusterError if they do not come, or none may look."""
    deadline = time.monotonic() + timeout_s
    while True:
        stop.check()
        try:
            await client.request("GET", f"/apis/{API_VERSION}")
        except ApiError as error:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{API_VERSION} is not served ({error}); install the CRDs first"
                ) from None
        else:
            return
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
