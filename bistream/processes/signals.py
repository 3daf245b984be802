"""The signals that ask a program of ours to end."""

from __future__ import annotations

import asyncio
import signal


def stop_signals() -> list[signal.Signals]:
    """SIGTERM, SIGINT, and SIGHUP unless it is ignored: nohup does that, for a program that outlives its terminal."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hang_up]


def stop_events() -> tuple[asyncio.Event, asyncio.Event]:
    """Of the running loop: the first and the second time that the process is asked to end."""
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, lambda: (second if first.is_set() else first).set())
    return first, second
