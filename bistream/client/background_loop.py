"""One event loop in a thread, for programs without one. It starts with the first call and ends with the program."""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
_lock = threading.Lock()
END_S = 5.0  # for the connections to close when the program ends


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run it in the loop and wait for its result, or raise its exception. From any other thread."""
    with _lock:  # two threads that come first at the same time must not make two
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon: the interpreter waits for other threads before it calls what is registered here.
    thread = threading.Thread(target=loop.run_forever, name="bistream-client", daemon=True)
    thread.start()
    atexit.register(_end, loop, thread)
    return loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)
        loop.stop()

    asyncio.run_coroutine_threadsafe(cancel_all(), loop)
    thread.join(2 * END_S)
