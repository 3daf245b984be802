"""The gate beside the server: started first, restarted alone when it dies or hangs, drained with the models, ended last.

It is a member like the servers of a group (``member_group``), in a thread of its own because the server's start and its probes may occupy
the supervisor for minutes. The keeper knows it by its command line, its exit code, and its ready file, which says whether it takes
sessions and is young as long as its event loop turns. A gate whose loop stands still is replaced, and takes the sessions of its clients
with it. Used by ``supervisor``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.keeper.hangs import HangWatch
from bistream.keeper.host import ServerError, url
from bistream.keeper.member_group import LOOK_INTERVAL_S, Member, MemberGroup, MemberPlan, import_path, spawn_member
from bistream.keeper.repository import read_number, read_parameters
from bistream.keeper.restart_policy import RestartLimits
from bistream.keeper.served_models import CLOSING_S, Sign
from bistream.keeper.server_process import Interrupted
from gateway.options import command
from gateway.settings import GateLimits, GateSettings

logger = logging.getLogger(__name__)

UNREADY_AFTER_S, HANG_TIMEOUT_S = 5.0, 30.0  # without a heartbeat it takes no sessions, whatever it said before; it is replaced
RESTARTS = RestartLimits(budget=7, window_s=300.0, first_delay_s=0.5, longest_delay_s=30.0)
UNREAD_MARGIN_S = 30.0  # of audio at the gate, beyond what makes the models wait for a client
BYTES_PER_CHARACTER = 4  # of UTF-8, at most


class Gate:
    """What the supervisor needs of a gate. This base class stands for no gate: clients reach Triton directly.

    is_ready: whether it takes sessions. has_ended: whether no session can be left in it.
    """

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def has_ended(self) -> bool:
        return True

    def hold(self) -> None:
        """It takes no sessions until ``release``, whatever the server says of itself."""

    def release(self) -> None:
        """The server works."""

    def drain(self) -> None:
        """It takes no new sessions and ends when the running ones have ended, or their time is up."""

    @contextlib.contextmanager
    def opened(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        """Open for clients inside. Raises ``ServerError`` or ``Interrupted`` when it cannot be opened."""
        yield


class KeptGate(Gate, MemberGroup):
    """settings: with an HTTP door, and the ports for all its processes. spawn_process, pause, clock: for tests. Raises ``ServerError``."""

    def __init__(
        self,
        settings: GateSettings,
        spawn_process: Callable[[MemberPlan], tuple[subprocess.Popen[str], Callable[[], str]]] = spawn_member,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert settings.http is not None
        self.grpc_url = url(settings.grpc.address, settings.grpc.port)
        self.http_url = url(settings.http.address, settings.http.port)
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="bistream-gate-")
        except OSError as error:
            raise ServerError(f"{error.strerror}; set TMPDIR to a folder for temporary files.") from None
        self._ready_file, self._hold_file = Path(self._folder.name) / "ready.json", Path(self._folder.name) / "hold"
        upstream = replace(settings.upstream, hold_file=self._hold_file)
        plan = MemberPlan(
            "the gate",
            command(replace(settings, upstream=upstream, ready_file=self._ready_file)),
            self._ready_file,
            import_path(),
            settings.drain_timeout_s + CLOSING_S,
            has_label=False,
        )
        self._member = Member(plan, RESTARTS, spawn_process, clock)
        super().__init__([[self._member]], pause, clock)
        self._watch = HangWatch(HANG_TIMEOUT_S, clock)
        self._takes_sessions = False
        self._opened, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        return self._takes_sessions and self._stops == 0

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def hold(self) -> None:
        self._hold_file.touch()

    def release(self) -> None:
        self._hold_file.unlink(missing_ok=True)

    def drain(self) -> None:
        self.stop()

    @contextlib.contextmanager
    def opened(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        thread = threading.Thread(target=self._keep, name="bistream-gate", daemon=True)
        with self._folder:
            thread.start()
            try:
                while not self._opened.wait(LOOK_INTERVAL_S):
                    if should_stop():
                        raise Interrupted
                if self._error is not None:
                    raise self._error
                yield
            finally:
                self._stops += 2  # at once
                thread.join()

    # The thread

    def _keep(self) -> None:
        try:
            self.run()
        except Exception as error:
            self._error = error
            if self._opened.is_set():
                logger.exception("the gate is not kept any more")
        finally:
            self._ended.set()
            self._opened.set()

    def _start(self) -> None:
        self._open(self._member)
        self._opened.set()

    def _look(self) -> None:
        self._member.look()
        beat, takes_sessions = self._report()
        pid = self._member.pid
        if pid is None:
            self._takes_sessions = False
            return
        hangs = self._watch.look({pid: Sign(beat)})
        silent_s = self._watch.silences()[pid]
        if silent_s >= UNREADY_AFTER_S and self._takes_sessions:
            logger.warning("the gate has given no sign of life for %.0f s", silent_s)
        self._takes_sessions = takes_sessions and silent_s < UNREADY_AFTER_S
        if hangs:
            logger.error("the gate has given no sign of life for %.0f s and is killed", silent_s)
            self._member.kill()

    def _report(self) -> tuple[int, bool]:
        """Its ready file: when it was touched last, and whether the gate takes sessions."""
        try:
            return self._ready_file.stat().st_mtime_ns, bool(json.loads(self._ready_file.read_text(encoding="utf-8"))["ready"])
        except OSError:  # it starts or ends
            return 0, False


def fit_limits(limits: GateLimits, model_repository: Path) -> GateLimits:
    """Limits that follow the settings of the models, where nobody has set other values than the defaults: room for the longest text, at
    least the models' patience with silent and with slow clients, and the rate of the audio."""
    parameters = read_parameters(model_repository).get(COSYVOICE2_BISTREAM.name, {})
    fitting: dict[str, Any] = {
        "max_text_bytes": max(limits.max_text_bytes, BYTES_PER_CHARACTER * int(read_number(parameters, "max_text_chars"))),
        "max_silence_s": max(limits.max_silence_s, read_number(parameters, "session_idle_timeout_s")),
        "max_unread_audio_s": max(limits.max_unread_audio_s, read_number(parameters, "max_unread_audio_s") + UNREAD_MARGIN_S),
        "sample_rate": int(read_number(parameters, "sample_rate")) or limits.sample_rate,
    }
    defaults = GateLimits()
    return replace(limits, **{name: value for name, value in fitting.items() if getattr(limits, name) == getattr(defaults, name)})
