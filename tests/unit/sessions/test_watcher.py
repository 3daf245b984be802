"""The watcher asks for the client of every session in turn, however many there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.sessions.watcher import MAX_POLLS, Watcher


class Watched:
    """In place of a ``SessionRun``."""

    def __init__(self, gone_after: int | None = None) -> None:
        self.session = self.reply = self
        self.gone_after = gone_after
        self.counts: Counter[str] = Counter()

    def is_cancelled(self) -> bool:
        self.counts["polls"] += 1
        return self.gone_after is not None and self.counts["polls"] >= self.gone_after

    def client_has_gone(self) -> None:
        self.counts["ends"] += 1

    def tick(self) -> None:
        self.counts["ticks"] += 1

    def check_deadlines(self) -> None:
        self.counts["checks"] += 1


@given(st.integers(0, 5 * MAX_POLLS), st.integers(1, 4))
@settings(max_examples=12, deadline=None)
def test_every_session_has_its_turn(sessions: int, turns: int) -> None:
    runs: dict[str, Any] = {str(number): Watched() for number in range(sessions)}
    watcher = Watcher(runs)
    rounds = -(-sessions // MAX_POLLS) * turns

    async def watch() -> None:
        for number in range(rounds):
            await watcher.watch(with_deadlines=number == 0)

    asyncio.run(watch())
    watcher.close()
    for run in runs.values():
        assert run.counts["polls"] >= turns and run.counts["ticks"] == rounds and run.counts["checks"] == 1
    assert sum(run.counts["polls"] for run in runs.values()) <= MAX_POLLS * rounds
