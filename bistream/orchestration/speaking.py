"""The life of one session: prepare the voice, start the language model, turn its tokens into audio as they arrive, end.

Two threads per session: the *speaker* (``SessionRun.run``) owns the session from the voice to ``close``, makes the hops and sends
the audio; the *reader* (``language_model_link.py``) takes the speech tokens. Timed work is triggered by the orchestrator's
watcher (``tick``); short calls to the models go through the delivery pool (``deliver``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, CancelledError, SessionTimeoutError
from bistream.orchestration.admission import SessionStart
from bistream.orchestration.delivery import DeliveryPool
from bistream.orchestration.hop_policy import HopPolicy, HopProgress
from bistream.orchestration.language_model_link import RENEWALS_PER_LEASE, LanguageModelLink, from_model, unexpected
from bistream.orchestration.playback import Playback, SpokenText
from bistream.orchestration.ports import Ports
from bistream.orchestration.session import CallerSession, SessionState
from bistream.rates import SAMPLE_RATE
from bistream.token2wav.service import Token2WavHop
from bistream.types import AudioChunk, FloatArray, VoicePrompt

logger = logging.getLogger(__name__)

TOKEN2WAV = "token2wav"  # name of this resource in ``CallerSession.own``
OFFLINE_CHUNK_SAMPLES = SAMPLE_RATE  # 96 kB: a whole utterance in one message would grow shared memory permanently
CANCEL_RETRY_S = 0.5  # a cancel can overtake its start, so it is repeated until the session is closed


@dataclass(frozen=True)
class Services:
    """Dependencies shared by all sessions. ``voice_of`` blocks and raises ``BistreamError``."""

    config: RuntimeConfig
    ports: Ports
    voice_of: Callable[[SessionStart], VoicePrompt]
    hop_policy: HopPolicy
    delivery: DeliveryPool
    clock: Callable[[], float]


class SessionRun:
    """One caller's session and its threads.

    on_ended: requests must no longer reach the session; called before its last message, possibly more than once.
    on_closed: its threads have ended and everything is freed; called once. A session that ends normally is closed before its last
    message, so that a client that waits for this message can start another session at once.
    """

    def __init__(
        self, session: CallerSession, services: Services, on_ended: Callable[[SessionRun], None], on_closed: Callable[[SessionRun], None]
    ) -> None:
        self.session = session
        self._services = services
        self._on_ended = on_ended
        self._on_closed = on_closed
        self._playback = Playback()
        self._spoken = SpokenText()
        self._link = LanguageModelLink(
            session, services.ports.language_model, self._spoken, services.config.session_idle_timeout_s, services.clock
        )
        self._wake_at: float | None = None  # when the speaker must check again even if nothing has arrived
        self._sequence_number = 0
        self._tokens_sent = 0
        self._hop_latency_s = 0.0
        self._last_hop_at = 0.0
        self._cancel_sent_at: float | None = None

    def start(self) -> None:
        threading.Thread(target=self.run, name=f"bistream-speak-{self.session.port_id[:8]}", daemon=True).start()

    # The speaker

    def run(self) -> None:
        try:
            self._speak()
        except BistreamError as error:
            self.end_early(from_model(error))
        except Exception:
            self.end_early(unexpected(self.session))
        finally:
            self._link.join()
            self.session.close()
            self._on_closed(self)
            self.session.reply.finish(self.session.error)

    def _speak(self) -> None:
        session = self.session
        prompt = self._services.voice_of(session.start)
        with session.condition:
            if session.has_ended:
                return
            session.opened(self._services.clock())
            self._link.open(
                prompt,
                wanted_tokens=lambda: self._wanted_tokens(prompt),
                started=lambda: self._services.delivery.schedule(self),
                on_error=self.end_early,
            )
        if session.start.offline:
            self._speak_offline(prompt)
        else:
            self._speak_in_hops(prompt)
        with session.condition:
            if session.has_ended:
                return
            session.advance(SessionState.CLOSED)
        self._on_ended(self)

    def _speak_in_hops(self, prompt: VoicePrompt) -> None:
        """Returns when the last hop was sent, the session has ended, or there is nothing to speak."""
        is_last = False
        while not is_last and (hop := self._next_hop(prompt)) is not None:
            begin = self._services.clock()
            waveform = self._services.ports.token2wav.hop(hop)
            self._last_hop_at = self._services.clock()
            if hop.token_ids:
                self._hop_latency_s = self._last_hop_at - begin
            is_last = hop.finalize
            if is_last:
                with self.session.condition:
                    self.session.disown(TOKEN2WAV)
            self._send(waveform, is_last)

    def _next_hop(self, prompt: VoicePrompt) -> Token2WavHop | None:
        """Wait until a hop is due, or until an empty hop must renew the token2wav lease. None: no hop will follow."""
        session = self.session
        with session.condition:
            while not session.has_ended:
                if session.finish_reason is not None and self._tokens_sent == 0 and not session.tokens:
                    return None
                now = self._services.clock()
                count = self._due_tokens(prompt, now)
                if count is not None:
                    return self._take_hop(count, prompt, now)
                session.speaking(False)
                if session.owns(TOKEN2WAV):
                    renew_at = self._last_hop_at + self._services.config.session_idle_timeout_s / RENEWALS_PER_LEASE
                    if now >= renew_at:
                        return Token2WavHop(session.port_id, (), finalize=False)
                    self._wake_at = renew_at if self._wake_at is None else min(self._wake_at, renew_at)
                session.condition.wait()
        return None

    def _due_tokens(self, prompt: VoicePrompt, now: float) -> int | None:
        """Tokens to send now; None: wait for more, or until ``_wake_at``."""
        buffer_s = self._playback.buffer_s(now)
        too_much_s = buffer_s - self._services.config.max_unread_audio_s
        if too_much_s > 0.0:
            self._wake_at = now + too_much_s
            return None
        progress = self._progress(prompt, buffer_s)
        count = self._services.hop_policy.next_hop(progress)
        recheck_s = self._services.hop_policy.recheck_after_s(progress) if count is None else None
        self._wake_at = None if recheck_s is None else now + recheck_s
        return count

    def _progress(self, prompt: VoicePrompt, buffer_s: float) -> HopProgress:
        return HopProgress(
            prompt_tokens=len(prompt.speech_tokens),
            received_tokens=self._tokens_sent + len(self.session.tokens),
            sent_tokens=self._tokens_sent,
            has_ended=self.session.finish_reason is not None,
            playback_buffer_s=buffer_s,
            hop_latency_s=self._hop_latency_s,
        )

    def _take_hop(self, count: int, prompt: VoicePrompt, now: float) -> Token2WavHop:
        session = self.session
        is_first = not session.owns(TOKEN2WAV)
        if is_first:
            session.own(TOKEN2WAV, lambda: self._services.ports.token2wav.cancel(session.port_id))
        session.speaking(True)
        self._tokens_sent += count
        return Token2WavHop(
            session_id=session.port_id,
            token_ids=session.take_tokens(count),
            finalize=session.finish_reason is not None and not session.tokens,
            prompt=prompt if is_first else None,
            seed=session.start.sampling.seed,
            playback_buffer_s=self._playback.buffer_s(now),
        )

    def _speak_offline(self, prompt: VoicePrompt) -> None:
        """The whole utterance in one call, once all its tokens have arrived."""
        session = self.session
        with session.condition:
            session.condition.wait_for(lambda: session.has_ended or session.finish_reason is not None)
            token_ids = session.take_tokens(len(session.tokens))
            if session.has_ended or not token_ids:
                return
        start = session.start
        waveform = self._services.ports.token2wav.synthesize(token_ids, prompt, start.sampling.seed, start.speed)
        for begin in range(0, len(waveform), OFFLINE_CHUNK_SAMPLES):
            end = begin + OFFLINE_CHUNK_SAMPLES
            self._send(waveform[begin:end], is_last=end >= len(waveform))

    def _send(self, waveform: FloatArray, is_last: bool) -> None:
        if len(waveform) == 0:
            return
        now = self._services.clock()
        with self.session.condition:
            self._playback.sent(len(waveform), now)
            samples_at_normal_speed = int(self._playback.samples_sent * self.session.start.speed)
            chunk = AudioChunk(waveform, self._sequence_number, self._spoken.characters(samples_at_normal_speed, is_last))
            self._sequence_number += 1
            self.session.last_activity_at = now
        self.session.reply.send(chunk)

    # Called from any thread

    def _wanted_tokens(self, prompt: VoicePrompt) -> int:
        """Called by the reader before each message."""
        with self.session.condition:
            return self._services.hop_policy.wanted_tokens(self._progress(prompt, 0.0))

    def append(self, piece: bytes, is_end: bool) -> None:
        """Raises ``UnknownSessionError`` or ``InvalidInputError``; the session is then unchanged."""
        with self.session.condition:
            self.session.add_text(piece, is_end, self._services.clock())
        self._services.delivery.schedule(self)

    def end_early(self, error: BistreamError) -> None:
        """Notify the client at once and cancel the models' work; the speaker frees everything once the threads have ended. Idempotent."""
        with self.session.condition:
            if not self.session.end_early(error):
                return
        self._on_ended(self)
        self._services.delivery.schedule(self)
        self.session.reply.finish(self.session.error)

    def client_has_gone(self) -> bool:
        """Poll the client's stream; end the session if it is gone."""
        if not self.session.reply.is_cancelled():
            return False
        self.end_early(CancelledError("The client's stream is gone; the session was cancelled."))
        return True

    def tick(self) -> None:
        """Timed work: wake the speaker, time out, renew the lease, repeat undelivered calls."""
        session = self.session
        with session.condition:
            now = self._services.clock()
            if self._wake_at is not None and now >= self._wake_at:
                self._wake_at = None
                session.condition.notify_all()
            is_idle = session.is_idle(now, self._services.config.session_idle_timeout_s)
            if session.has_ended:
                is_due = self._cancel_sent_at is not None and now - self._cancel_sent_at >= CANCEL_RETRY_S
            else:
                is_due = self._link.is_due(now)
        if is_idle:
            self.end_early(SessionTimeoutError("No text arrived within the idle timeout; start the session again."))
        elif is_due:
            self._services.delivery.schedule(self)

    def deliver(self) -> None:
        """One round of the delivery pool."""
        with self.session.condition:
            has_ended = self.session.has_ended
            if has_ended:
                self._cancel_sent_at = self._services.clock()
        if has_ended:
            self.session.stop()
            return
        try:
            self._link.deliver()
        except BistreamError as error:
            self.end_early(from_model(error))
        except Exception:
            self.end_early(unexpected(self.session))
