"""The signals that ask a program of ours to end."""

from __future__ import annotations

import signal


def stop_signals() -> list[signal.Signals]:
    """SIGTERM, SIGINT, and SIGHUP unless it is ignored: nohup does that, for a program that outlives its terminal."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hang_up]
