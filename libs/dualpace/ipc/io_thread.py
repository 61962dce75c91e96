"""A thread with an event loop, in which an engine's sockets live apart from its compute."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class IoThread:
    """Start once, submit from any thread, stop once."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result; not from the loop itself."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine in the loop; it runs until it ends or the loop stops."""

        async def guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("a background task failed")
                raise

        asyncio.run_coroutine_threadsafe(guarded(), self._loop)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop soon; a loop that has stopped ignores it."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def stop(self) -> None:
        """Cancel what is left, stop the loop and join the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
