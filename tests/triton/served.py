"""A kept server with all models, its processes and its callers, for the tests of failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.sounds import speech_like
from tests.triton.callers import Caller
from tests.triton.conftest import START_TIMEOUT_S, make_repository, wait_for
from tests.triton.keeper import Keeper, processes_with

CALLERS = 3
END_S = 240.0  # decides nothing on a working server


class Served:
    """A kept server with all models."""

    def __init__(self, keeper: Keeper, repository: Path) -> None:
        self.keeper = keeper
        self._repository = repository
        self._voices = 0
        self.health_port = 0  # where it was asked for

    @property
    def grpc_url(self) -> str:
        """The public address, which outlives restarts (``wait_restarted``)."""
        return self.keeper.grpc_url

    def process(self, model: str) -> int:
        """Of an instance of the model that serves; waits while one takes the place of another."""
        found: list[int] = []
        stated = re.search(r"^instance_group .*count: (\d+)", (self._repository / model / "config.pbtxt").read_text(), re.MULTILINE)
        instances = 1 if stated is None else int(stated[1])

        def are_all() -> bool:
            found[:] = processes_with(f"{self._repository}/{model}/1/model.py")
            return len(found) == instances

        wait_for(are_all, f"{instances} processes of {model}")
        return found[0]

    def owns(self, pid: int) -> bool:
        """Whether a process has this repository in its command line."""
        return pid in processes_with(str(self._repository)) and pid != self.keeper.pid

    def new_voice(self) -> dict[str, Any]:
        """A recording that no model has seen, so that it must be analysed."""
        self._voices += 1
        return {
            "reference_wav": speech_like(seed=self._voices).reshape(1, -1),
            "reference_wav_len": 16000,
            "reference_text": "A reference.",
        }

    def callers(self) -> list[Caller]:
        """Sessions that have heard audio and have more to say."""
        callers = [Caller(self.grpc_url, self.new_voice()) for _ in range(CALLERS)]
        for caller in callers:
            caller.wait_audio()
        return callers

    def new_session(self) -> str:
        """The outcome of a whole session with a voice of its own."""
        caller = Caller(self.grpc_url, self.new_voice(), "A new session.", is_end=True)
        caller.wait_end(END_S)
        caller.close()
        return caller.outcome

    @property
    def server(self) -> int:
        """The process of tritonserver; 0 while there is none."""
        found = [pid for pid in processes_with("tritonserver\0--model-repository") if self.owns(pid)]
        return found[0] if len(found) == 1 else 0

    def wait_restarted(self, server: int) -> None:
        """Until another server process than ``server`` serves, on the same public address."""
        wait_for(lambda: self.keeper.is_announced() and self.server not in (0, server), "the restart", START_TIMEOUT_S)
        assert self.keeper.addresses()["grpc"] == self.keeper.grpc_url


@contextmanager
def serving(folder: Path, model_dir: Path, *arguments: str, **settings: str) -> Iterator[Served]:
    """``settings`` as for ``make_repository``; ``arguments`` of ``serve.py``."""
    limits = {"max_sessions": "16", "cosyvoice2_bistream.max_sessions": "8"}
    repository = make_repository(folder, model_dir, None, **{**limits, **settings})
    with Keeper(repository, "--max-restarts", "20", *arguments) as keeper:
        yield Served(keeper, repository)
        if not keeper.has_ended:  # by its last test
            keeper.signal()
            keeper.check_end()


def end(callers: list[Caller]) -> list[str]:
    """The outcomes of sessions, once all have ended or ``END_S`` is over."""
    for caller in callers:
        caller.wait_end(END_S)
        caller.close()
    return [caller.outcome for caller in callers]
