"""When the next hop of a session is due, and what it carries: from its tokens, its listener's buffer, the pace of its text and the time
the last hop took.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from bistream.config import RuntimeConfig
from bistream.contract.checks import MAX_SPEED, MIN_SPEED
from bistream.hops.policy import HopPolicy
from bistream.hops.progress import DueHop, HopProgress
from bistream.hops.speeds import SpeedRuns
from bistream.hops.text_pace import TextPace
from bistream.sessions.breaks import AudioBreaks
from bistream.sessions.language_model_client import RENEWALS_PER_LEASE
from bistream.sessions.load import SessionLoad
from bistream.sessions.playback import Playback
from bistream.sessions.session import CallerSession
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.types import TokenDemand, VoicePrompt

TOKEN2WAV = "token2wav"  # name of this resource in ``CallerSession.own``


class HopPacing:
    """wake_at: when to look again even if nothing has arrived. hop_began_at: of the hop that is under way."""

    def __init__(
        self,
        session: CallerSession,
        config: RuntimeConfig,
        policy: HopPolicy,
        cancel: Callable[[], Awaitable[None]],
        report: Callable[[], LoadReport | None],
    ) -> None:
        """cancel: ends the session in token2wav; registered with its first hop. report: the latest of token2wav."""
        self._session = session
        self._config = config
        self._policy = policy
        self._cancel = cancel
        self._report = report
        self._voice_tokens: int | None = None
        self._tokens_sent = 0
        self._rate = 1.0  # of what is sent next, over the session's speed
        self._tokens_flushed = 0  # of them
        self._hop_latency_s = 0.0
        self._last_hop_at = 0.0
        self._first_tokens_at: float | None = None  # when those of the first hop were there
        self._format = policy.audio_format
        self.text = TextPace(policy.blocks.text_tokens)
        self.playback = Playback(self._format.sample_rate)
        self.breaks = AudioBreaks(self._format.sample_rate)
        self._speeds = SpeedRuns()  # of the tokens that were sent
        self.wake_at: float | None = None
        self.hop_began_at: float | None = None

    def voice_ready(self, prompt: VoicePrompt) -> None:
        self._voice_tokens = len(prompt.speech_tokens)

    @property
    def is_silent(self) -> bool:
        """The language model has ended, and there is nothing to speak."""
        return self._session.finish_reason is not None and self._tokens_sent == 0 and not self._session.tokens

    def next_hop(self, prompt: VoicePrompt, now: float) -> Token2WavHop | None:
        """The hop that is due, or an empty one that renews the lease of token2wav. None: wait for tokens, or until ``wake_at``."""
        session = self._session
        due = self._due_hop(now)
        if due is not None:
            return self._take(due, prompt, now)
        session.speaking(False)
        if session.owns(TOKEN2WAV):
            renew_at = self._last_hop_at + self._config.session_idle_timeout_s / RENEWALS_PER_LEASE
            if now >= renew_at:
                return Token2WavHop(session.port_id, (), finalize=False)
            self.wake_at = renew_at if self.wake_at is None else min(self.wake_at, renew_at)
        return None

    def hop_done(self, began_at: float, now: float, has_tokens: bool) -> None:
        """Token2wav has answered."""
        self._last_hop_at, self.hop_began_at = now, None
        if has_tokens:
            self._hop_latency_s = now - began_at

    def demand(self, now: float) -> TokenDemand:
        """How many more tokens the next hop needs, and the audio that the listener has until then."""
        frames = self._speeds.heard + self._frames(len(self._session.tokens)) / self._speed
        received_s = frames * self._format.samples_per_mel_frame / self._format.sample_rate
        spoken_s = self.breaks.rendered(self.playback.samples_sent) / self._format.sample_rate
        unspoken_s = max(0.0, received_s - self._policy.withheld_s - spoken_s)
        slack_s = None if self._session.start.offline else self.playback.buffer_s(now) + unspoken_s
        return TokenDemand(self._policy.wanted_tokens(self._progress_behind_breaks(now)), slack_s)

    def _progress_behind_breaks(self, now: float) -> HopProgress:
        """Once all hops are sent that end at breaks: flushes, behind which counts begin anew, where the family knows them."""
        progress, session = self._progress(now, 0.0), self._session
        ends = [place for place, begun in session.break_edges if begun is None and place > self._tokens_sent]
        if not ends or self._policy.blocks.interleaved:
            return progress
        return replace(progress, received_tokens=self._tokens_sent + len(session.tokens) - ends[-1], sent_tokens=0)

    def sends(self, tokens: int) -> None:
        """So many go to token2wav, at the speed of the first of them."""
        end, edges, speed = self._tokens_sent + tokens, self._session.break_edges, self._speed
        while edges and edges[0][0] <= end:
            place, begun = edges.popleft()
            self._count_sent(place, speed)
            at = self._speeds.heard * self._format.samples_per_mel_frame
            if begun is None:
                self.breaks.end(at)
            else:
                self.breaks.begin(at, begun.silence_ms)
                self._rate = begun.rate_percent / 100
        self._count_sent(end, speed)

    def _count_sent(self, until: int, speed: float) -> None:
        self._speeds.add(self._frames(until - self._tokens_sent), speed)
        self._tokens_sent = until

    @property
    def _speed(self) -> float:
        """Of the next tokens to be sent."""
        return min(MAX_SPEED, max(MIN_SPEED, self._session.speed * self._rate))

    def _cut(self) -> tuple[int, bool] | None:
        """Tokens up to the place of a break where a hop ends, and whether its filling ends there; None: there is no such place yet.

        A hop has one speed, and the speech before a silence must not wait for that behind it.
        """
        for place, begun in self._session.break_edges:
            if place > self._tokens_sent and (begun is None or begun.rate_percent != 100 * self._rate):
                return place - self._tokens_sent, begun is None
        return None

    def spoken(self, samples: int) -> int:
        """Samples that so many of the audio would be at the usual speed and without silence in place of tokens."""
        size = self._format.samples_per_mel_frame
        return int(self._speeds.spoken_at(self.breaks.rendered(samples) / size) * size)

    def _frames(self, tokens: int) -> int:
        return tokens * self._format.mel_frames_per_token

    def is_time(self, now: float) -> bool:
        """Whether ``wake_at`` has been reached; clears it if so."""
        if self.wake_at is None or now < self.wake_at:
            return False
        self.wake_at = None
        return True

    def standing(self, now: float, accepted_at: float) -> SessionLoad:
        """For admission, which counts all sessions at once."""
        session = self._session
        return SessionLoad(
            age_s=now - accepted_at,
            buffer_s=self.playback.buffer_s(now),
            made_s=self.spoken(self.playback.samples_sent) / self._format.sample_rate,
            received_s=(self._tokens_sent + len(session.tokens)) / self._format.tokens_per_second,
            tokens_ended=session.finish_reason is not None,
            text_ended=session.text.ended,
            hop_waits=self.hop_began_at is not None,
            has_ended=session.has_ended,
            voice_tokens=self._voice_tokens,
            reserved_s=session.reserved_s,
            speed=session.speed,
        )

    def _due_hop(self, now: float) -> DueHop | None:
        """None: wait for tokens, or until ``wake_at``."""
        buffer_s = self.playback.buffer_s(now)
        too_much_s = buffer_s - self._config.max_unread_audio_s
        if too_much_s > 0.0:
            self.wake_at = now + too_much_s
            return None
        self.sends(0)  # a break before the first of them
        progress, cut = self._progress(now, buffer_s), self._cut()
        due = self._policy.due_hop(progress)
        waits = due is None and not progress.sent_tokens and self._policy.has_first_tokens(progress)  # though its tokens are there
        if cut is not None and not waits and (due is None or cut[0] < due.tokens):
            self.wake_at = None
            return DueHop.flush(cut[0]) if cut[1] and not self._policy.blocks.interleaved else DueHop(cut[0])
        recheck_s = self._policy.recheck_after_s(progress) if due is None else None
        self.wake_at = None if recheck_s is None else now + recheck_s
        return due

    def _progress(self, now: float, buffer_s: float) -> HopProgress:
        assert self._voice_tokens is not None
        session, heard = self._session, self._session.last_message
        progress = HopProgress(
            prompt_tokens=self._voice_tokens,
            received_tokens=self._tokens_sent + len(session.tokens) - self._tokens_flushed,
            sent_tokens=self._tokens_sent - self._tokens_flushed,
            has_ended=session.finish_reason is not None,
            playback_buffer_s=buffer_s,
            hop_latency_s=self._hop_latency_s,
            is_whole=session.start.is_end or not self._policy.blocks.interleaved,
            is_resting=heard.is_resting,
            chunks_join=(report := self._report()) is not None and report.chunks_join,
            speed=self._speed,
            start_speed=session.start.speed,
        )
        if self._tokens_sent or session.start.is_end or not self._policy.has_first_tokens(progress):
            return progress
        if self._first_tokens_at is None:
            self._first_tokens_at = now
        fed = heard.text_fed, heard.text_tokens_fed
        return replace(
            progress,
            next_block_s=0.0 if session.text.ended else self.text.next_block_s(*fed, now),
            block_every_s=self.text.block_every_s(*fed, now),
            waited_s=now - self._first_tokens_at,
        )

    def _take(self, due: DueHop, prompt: VoicePrompt, now: float) -> Token2WavHop:
        session = self._session
        is_first = not session.owns(TOKEN2WAV)
        if is_first:
            session.own(TOKEN2WAV, self._cancel)
        session.speaking(True)
        speed = self._speed
        self.sends(due.tokens)
        if due.is_flush:
            self._tokens_flushed = self._tokens_sent
        return Token2WavHop(
            session_id=session.port_id,
            token_ids=session.take_tokens(due.tokens),
            finalize=due.is_final,
            prompt=prompt if is_first else None,
            audio=session.start.audio,
            playback_buffer_s=self.playback.buffer_s(now),
            expected_speech_s=session.reserved_s if is_first else None,
            lookahead_tokens=due.lookahead_tokens,
            speed=speed,
        )
