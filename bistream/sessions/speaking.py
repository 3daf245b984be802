"""The life of one session: prepare the voice, start the language model, turn its tokens into audio as they arrive, end.

Everything here runs in the orchestrator's event loop. Two tasks per session: the *speaker* (``SessionRun.run``) owns the session from the
voice to its end, makes the hops and sends the audio; the *reader* (``language_model_client.py``) takes the speech tokens. Timed work is
triggered by the orchestrator's watcher (``tick``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from bistream.contract.audio import SILENCE_S
from bistream.contract.checks import check_offline_length
from bistream.contract.fields import LLM_BISTREAM
from bistream.contract.refusals import client_has_gone, silent_too_long
from bistream.errors import BistreamError, EngineError
from bistream.sessions.hop_pacing import TOKEN2WAV, HopPacing
from bistream.sessions.language_model_client import LanguageModelClient, from_model, unexpected
from bistream.sessions.load import NOTHING, SessionLoad
from bistream.sessions.playback import SpokenText
from bistream.sessions.request_checks import SessionStart
from bistream.sessions.services import Services
from bistream.sessions.session import CallerSession, SessionState
from bistream.sessions.session_record import SessionRecord
from bistream.token2wav.service import Token2WavHop
from bistream.types import AudioChunk, FinishReason, FloatArray, IntArray, SpeechTokens, VoicePrompt
from bistream.voice.analyses import Analysis, Result

logger = logging.getLogger(__name__)

OFFLINE_CHUNK_SAMPLES = 24_000  # 96 kB: a whole utterance in one message would grow shared memory permanently
ANSWER_TIMEOUT_S = 120.0  # the last resort: dead and hanging models are noticed by the keeper within 15 s


class SessionRun:
    """One caller's session and its tasks.

    on_ended: requests must no longer reach the session; called before its last message, possibly more than once.
    on_closed: its tasks have ended and everything is freed; called once. A session that ends normally is closed before its last
    message, so that a client that waits for this message can start another session at once.
    """

    def __init__(
        self,
        session: CallerSession,
        services: Services,
        on_ended: Callable[[SessionRun], None],
        on_closed: Callable[[SessionRun], None],
    ) -> None:
        self.session = session
        self.counted = NOTHING  # its need, when admission counted it last
        self._services = services
        self._on_ended = on_ended
        self._on_closed = on_closed
        self._cancel_hops = partial(services.ports.token2wav.cancel, session.port_id)  # not of self, which would then live on
        self._pacing = HopPacing(session, services.config, services.hop_policy, self._cancel_hops, services.ports.token2wav.report)
        self._record = SessionRecord(services.metrics, session, services.clock(), services.audio_format.sample_rate)
        self._spoken = SpokenText(session.text.effort, services.audio_format)
        self._pacing.text.came(session.text.characters, services.clock())
        self._position = self._characters = 0  # of the text, and certainly spoken, in the last chunk
        lease_s = services.config.session_idle_timeout_s
        self._link = LanguageModelClient(session, services.ports.language_model, self._spoken, lease_s, services.clock)
        self._is_reading = False
        self._sequence_number = 0

    # The speaker

    async def run(self) -> None:
        try:
            with self._ending_with_its_error():
                await self._speak()
        finally:
            while self._is_reading:
                await self.session.changed()
            await self.session.free()
            self._end_record()
            self._on_closed(self)
            self.session.reply.finish(self.session.error)

    async def _speak(self) -> None:
        session = self.session
        voices = self._services.voices
        prompt = await self._analysed(voices.request)
        if session.has_ended or prompt is None:
            return
        tokens = None
        if session.start.source_wav is not None:
            tokens = await self._analysed(voices.request_source)
            if session.has_ended or tokens is None:
                return
        session.opened(now := self._services.clock())
        self._pacing.voice_ready(prompt)
        self._spoken.voice_ready(prompt)
        self._record.voice_ready(now)
        if tokens is not None:
            self._take_source(tokens)
        else:
            self._is_reading = True
            self._services.loop.start_task(self._read(prompt))
        if session.start.offline:
            await self._speak_offline(prompt)
        else:
            await self._speak_in_hops(prompt)
        if not session.has_ended and self._pacing.playback.samples_sent == 0:
            silence = np.zeros(round(SILENCE_S * self._services.audio_format.sample_rate), np.float32)
            await self._send(silence, is_last=True)  # its text has nothing to speak
        if not session.has_ended:
            session.advance(SessionState.CLOSED)
            self._services.earlier.add(session, prompt)
            self._on_ended(self)

    async def _analysed(self, ask: Callable[[SessionStart], Analysis[Result]]) -> Result | None:
        """None: the session has ended; an analysis of its recording goes on without it."""
        session, loop = self.session, self._services.loop
        request = await asyncio.get_running_loop().run_in_executor(self._services.helpers, ask, session.start)
        request.future.add_done_callback(lambda _: loop.call(session.wake))
        while not (session.has_ended or request.future.done()):
            await session.changed()
        self._services.voices.abandon(request)
        return request.future.result() if request.future.done() else None

    def _take_source(self, tokens: IntArray) -> None:
        """The recording's own speech tokens, all at once, in place of the language model's."""
        message = SpeechTokens(tuple(tokens.tolist()), 0, FinishReason.EOS)
        self._spoken.tokens_came(message)
        self.session.take_message(message)

    async def _speak_in_hops(self, prompt: VoicePrompt) -> None:
        """Returns when the last hop was sent, the session has ended, or there is nothing to speak."""
        is_last = False
        while not is_last and (hop := await self._next_hop(prompt)) is not None:
            began_at = self._pacing.hop_began_at = self._services.clock()
            waveform = await self._services.ports.token2wav.hop(hop)
            done_at = self._services.clock()
            self._pacing.hop_done(began_at, done_at, bool(hop.token_ids))
            self._record.hop_done(began_at, done_at)
            is_last = hop.finalize
            if is_last:
                self.session.disown(TOKEN2WAV)
            await self._send(waveform, is_last)

    async def _next_hop(self, prompt: VoicePrompt) -> Token2WavHop | None:
        """Wait until a hop is due, or until an empty hop must renew the token2wav lease. None: no hop will follow."""
        session = self.session
        while not session.has_ended and not self._pacing.is_silent:
            hop = self._pacing.next_hop(prompt, self._services.clock())
            if hop is not None:
                return hop
            await session.changed()
        return None

    async def _speak_offline(self, prompt: VoicePrompt) -> None:
        """The whole utterance in one call, once all its tokens have arrived."""
        session = self.session
        longest = self._services.config.max_offline_tokens
        while not (session.has_ended or session.finish_reason is not None or len(session.tokens) > longest):
            await session.changed()
        check_offline_length(len(session.tokens), longest, self._services.audio_format.tokens_per_second)
        token_ids = session.take_tokens(len(session.tokens))
        if session.has_ended or not token_ids:
            return
        session.own(TOKEN2WAV, self._cancel_hops)
        self._pacing.sends(len(token_ids))
        start, token2wav = session.start, self._services.ports.token2wav
        waveform = await token2wav.synthesize(token_ids, prompt, start.audio, start.speed, session.port_id)
        session.disown(TOKEN2WAV)
        for begin in range(0, len(waveform), OFFLINE_CHUNK_SAMPLES):
            end = begin + OFFLINE_CHUNK_SAMPLES
            await self._send(waveform[begin:end], is_last=end >= len(waveform))

    async def _send(self, waveform: FloatArray, is_last: bool) -> None:
        parts = self._pacing.breaks.push(waveform, is_last)
        for index, part in enumerate(parts, start=1):
            now, is_end = self._services.clock(), is_last and index == len(parts)
            self._pacing.playback.sent(len(part), now)
            samples = self._pacing.spoken(self._pacing.playback.samples_sent)
            self._position = max(self._position, self._spoken.position(samples, is_end))  # the estimate changes with what is known
            characters_before, self._characters = self._characters, self._spoken.characters(samples, is_end)
            chunk = AudioChunk(part, self._sequence_number, self._characters, self._position)
            self._sequence_number += 1
            self.session.audio_sent(characters_before, now)
            if await self.session.reply.send(chunk):
                self._record.chunk_sent(len(part), self._services.clock())

    def _end_record(self) -> None:
        """Never raises: the session's place must become free."""
        try:
            self._record.ended(self._spoken.tokens, self._pacing.playback)
        except Exception:
            logger.exception("the end of session %s was not recorded", self.session.port_id)

    # The reader and the calls that carry text

    async def _read(self, prompt: VoicePrompt) -> None:
        try:
            with self._ending_with_its_error():
                await self._link.start(prompt, self._services.family.tells_speaker, self._services.earlier.named_by(self.session, prompt))
                self._deliver_what_is_due(self._services.clock())
                await self._link.read(lambda: self._pacing.demand(self._services.clock()))
        finally:
            self._is_reading = False
            self.session.wake()

    def _deliver_what_is_due(self, now: float) -> None:
        if self._link.is_due(now):
            self._services.loop.start_task(self._deliver(self._link.deliver()))

    async def _deliver(self, delivery: Awaitable[None]) -> None:
        with self._ending_with_its_error():
            await delivery

    @contextmanager
    def _ending_with_its_error(self) -> Iterator[None]:
        try:
            yield
        except BistreamError as error:
            self.end_early(from_model(error))
        except Exception:
            self.end_early(unexpected(self.session))

    # Called by the orchestrator

    def standing(self, now: float) -> SessionLoad:
        """For admission."""
        return self._pacing.standing(now, self._record.marks.accepted_at)

    def needs(self, model: str) -> bool:
        """Whether the session still depends on this model's process to end well. The models of a recording answer for themselves."""
        return model == TOKEN2WAV or (model == LLM_BISTREAM.name and self.session.needs_language_model)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended early, and the client was told; its tasks may still wait for a model."""
        return self.session.has_ended and self.session.state is not SessionState.CLOSED

    @property
    def is_delivering(self) -> bool:
        """Whether text or a renewal is on its way to the language model."""
        return self._link.is_delivering

    def append(self, piece: bytes, is_end: bool, speed: float | None = None) -> None:
        """Of a session that has not ended. speed: None: as before. Raises as ``add_text`` does; the session is then unchanged."""
        now = self._services.clock()
        self.session.add_text(piece, is_end, now)
        self.session.speed = self.session.speed if speed is None else speed
        self._pacing.text.came(self.session.text.characters, now)
        self._deliver_what_is_due(now)

    def heard(self) -> AudioChunk:
        """No audio, but the text heard by a listener who has played at normal speed since the first chunk."""
        playback = self._pacing.playback
        unplayed = round(playback.buffer_s(self._services.clock()) * self._services.audio_format.sample_rate)
        samples = self._pacing.spoken(max(0, playback.samples_sent - unplayed))
        position = self._spoken.position(samples, is_last=False)
        return AudioChunk(np.zeros(0, np.float32), self._sequence_number, self._spoken.characters(samples, is_last=False), position)

    def end_early(self, error: BistreamError) -> None:
        """Notify the client at once and cancel the models' work; the speaker ends once both tasks have their answers. Idempotent."""
        if not self.session.end_early(error):
            return
        self._on_ended(self)
        self._services.loop.start_task(self.session.free())
        self.session.reply.finish(self.session.error)

    def client_has_gone(self) -> None:
        self._record.client_is_gone = True
        self.end_early(client_has_gone())

    def tick(self) -> None:
        """Wake the speaker when it is time for a hop."""
        if self._pacing.is_time(self._services.clock()):
            self.session.wake()

    def check_deadlines(self) -> None:
        """What is counted in seconds: time out, renew the lease."""
        session, now = self.session, self._services.clock()
        limit_s = self._services.config.session_idle_timeout_s
        if not session.has_ended and now - self._owed_since(now) >= ANSWER_TIMEOUT_S:
            self.end_early(EngineError("A model of the server did not answer; start the session again."))
        elif session.is_idle(now, limit_s):
            self.end_early(silent_too_long(limit_s))
        else:
            self._deliver_what_is_due(now)

    def _owed_since(self, now: float) -> float:
        """Time since which a model has owed an answer, whatever the client does; ``now`` if none does."""
        for since in (self._pacing.hop_began_at, self._link.unknown_since):
            if since is not None:
                return since
        is_owed = self.session.state is SessionState.FINISHING and self.session.finish_reason is None
        return max(self._link.heard_at, self.session.last_activity_at) if is_owed else now
