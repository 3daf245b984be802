"""The logic of ``cosyvoice2_bistream`` without Triton: requests in, audio out, over the ports of the four models.

``handle`` checks a request, answers or refuses it, and hands the work on. Threads: two per session (``speaking.py``), the delivery
pool for text and cancels (``delivery.py``), and the *watcher*, which detects disconnected clients and runs the sessions' timed work.
Called by the ``model.py`` files and by ``local.py``.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

from bistream.config import RuntimeConfig
from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    EngineError,
    InvalidInputError,
    SessionExistsError,
    ShuttingDownError,
    UnknownSessionError,
)
from bistream.limits import check_session_id
from bistream.orchestration.admission import TextLedger, check_append, check_start
from bistream.orchestration.delivery import DeliveryPool
from bistream.orchestration.hop_policy import HopPolicy
from bistream.orchestration.ports import AudioSender, BistreamRequest, Ports
from bistream.orchestration.session import CallerSession
from bistream.orchestration.speaking import Services, SessionRun
from bistream.orchestration.voices import Voices

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.02
MAX_POLLS_PER_WATCH = 64  # polling Triton for a disconnected client costs 28 us; more sessions take turns
DELIVERY_THREADS = 4
CLOSE_TIMEOUT_S = 5.0  # cancelled sessions end within a hop; do not wait for a dead model


class Orchestrator:
    """All live sessions of one process. Thread-safe.

    watched: False leaves calling ``watch`` to the caller (tests).
    """

    def __init__(self, config: RuntimeConfig, ports: Ports, clock: Callable[[], float] = time.monotonic, watched: bool = True) -> None:
        self._config = config
        self._clock = clock
        self._delivery = DeliveryPool(DELIVERY_THREADS)
        hop_policy = HopPolicy(first_hop_tokens=config.first_hop_tokens)
        self._services = Services(config, ports, Voices(config, ports.voice).voice_of, hop_policy, self._delivery, clock)
        self._changed = threading.Condition()  # guards the fields below; notified when a session is added or removed
        self._reachable: dict[str, SessionRun] = {}  # by the client's id, until the session ends
        self._open: dict[str, SessionRun] = {}  # by our id, until everything is freed
        self._poll_order: deque[SessionRun] = deque()
        self._draining = False
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch_until_stopped, name="bistream-watch", daemon=True)
        if watched:
            self._watcher.start()

    @property
    def open_sessions(self) -> int:
        """Sessions that hold resources, including those being closed."""
        with self._changed:
            return len(self._open)

    # Requests

    def handle(self, request: BistreamRequest, sender: AudioSender) -> None:
        """Start a session, append to it or cancel it. Returns at once and never raises.

        ``sender`` is finished exactly once: that of a start after the session's audio, any other before this returns.
        """
        try:
            if self._handle(request, sender):
                return
            error = None
        except BistreamError as refusal:
            error = refusal.renewed(refusal.session_id or request.session_id)
        except Exception:
            logger.exception("a request failed")
            error = EngineError("The server failed while reading this request; try again.", request.session_id)
        sender.finish(error)

    def _handle(self, request: BistreamRequest, sender: AudioSender) -> bool:
        """Whether the session answers the sender later."""
        if request.session_id is not None:
            check_session_id(request.session_id)
        if request.is_cancel:
            self._find_run(request).end_early(CancelledError("The session was cancelled by its client."))
            return False
        if not request.is_start:
            run = self._find_run(request)
            check_append(request)
            run.append(request.target_text or b"", request.is_end)
            return False
        self._start(request, sender)
        return True

    def _find_run(self, request: BistreamRequest) -> SessionRun:
        if request.session_id is None:
            raise InvalidInputError("session_id is missing; send the id of a started session.")
        with self._changed:
            run = self._reachable.get(request.session_id)
        if run is None:
            raise UnknownSessionError("No live session has this id (never started, finished or cancelled); start a new one.")
        return run

    def _start(self, request: BistreamRequest, sender: AudioSender) -> None:
        self._refuse_existing(request.session_id)
        start = check_start(request, self._config)
        text = TextLedger(self._config.max_text_chars)
        text.accept(start.text, start.is_end)
        session = CallerSession(start, text, uuid.uuid4().hex, sender, self._clock())
        run = SessionRun(session, self._services, self._make_unreachable, self._forget)
        with self._changed:
            self._admit(run)
        try:
            run.start()
        except RuntimeError as error:  # the system cannot create another thread
            self._make_unreachable(run)
            self._forget(run)
            raise BusyError("The server cannot create a thread for this session; try again later.") from error

    def _refuse_existing(self, session_id: str | None) -> None:
        with self._changed:
            run = self._reachable.get(session_id) if session_id is not None else None
        if run is not None and not run.client_has_gone():
            raise SessionExistsError("A live session has this id; choose another, or append with is_start false.")

    def _admit(self, run: SessionRun) -> None:
        session = run.session
        if self._draining:
            raise ShuttingDownError("The server is shutting down and takes no new sessions; connect to another one.")
        if session.id is not None and session.id in self._reachable:
            raise SessionExistsError("A live session has this id; choose another, or append with is_start false.")
        if len(self._open) >= self._config.max_sessions:
            raise BusyError(f"All {self._config.max_sessions} sessions are taken; try again later.")
        if session.id is not None:
            self._reachable[session.id] = run
        self._open[session.port_id] = run
        self._poll_order.append(run)
        self._changed.notify_all()

    # Called by the sessions

    def _make_unreachable(self, run: SessionRun) -> None:
        with self._changed:
            if run.session.id is not None and self._reachable.get(run.session.id) is run:
                del self._reachable[run.session.id]

    def _forget(self, run: SessionRun) -> None:
        with self._changed:
            del self._open[run.session.port_id]
            if not self._open:
                self._poll_order.clear()
            self._changed.notify_all()

    # The watcher

    def _watch_until_stopped(self) -> None:
        while not self._stopped.wait(WATCH_INTERVAL_S):
            with self._changed:
                self._changed.wait_for(lambda: self._open or self._stopped.is_set())
            self.watch()

    def watch(self) -> None:
        """One round: end the sessions whose client has disconnected, and run every session's timed work."""
        with self._changed:
            runs = list(self._open.values())
            polled = self._next_to_poll()
        for task in (*(run.client_has_gone for run in polled), *(run.tick for run in runs)):
            try:
                task()
            except Exception:
                logger.exception("watching one session failed; the others continue")

    def _next_to_poll(self) -> list[SessionRun]:
        polled = []
        for _ in range(min(len(self._poll_order), MAX_POLLS_PER_WATCH)):
            run = self._poll_order.popleft()
            if run.session.port_id in self._open:
                self._poll_order.append(run)
                polled.append(run)
        return polled

    # Shutdown

    def drain(self, deadline_s: float) -> None:
        """Refuse new sessions, give running ones ``deadline_s`` to finish, then end them with ``ShuttingDownError``. Blocks."""
        with self._changed:
            self._draining = True
            self._changed.wait_for(lambda: not self._open, timeout=deadline_s)
            left = list(self._open.values())
        if left:
            logger.warning("%d sessions are still running at the drain deadline and are ended", len(left))
        for run in left:
            run.end_early(ShuttingDownError("The server is shutting down; start the session on another one."))
        with self._changed:
            if not self._changed.wait_for(lambda: not self._open, timeout=CLOSE_TIMEOUT_S):
                logger.error("%d sessions could not be closed: a model does not answer", len(self._open))

    def close(self) -> None:
        """Drain for ``drain_timeout_s``, then stop all threads. Idempotent."""
        if self._stopped.is_set():
            return
        self.drain(self._config.drain_timeout_s)
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        self._delivery.close()
