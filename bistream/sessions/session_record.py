"""What one session's record tells: marks on the way to the first audio, gaps, its end as metrics and as one log line.

The session's speaker sets the marks (``speaking.py``); ``SessionMetrics`` belongs to the orchestrator and holds the counters that all its
sessions share. Stages inside the language model and token2wav are recorded by those processes (``text2token/step_metrics.py``,
``token2wav/hop_metrics.py``): recording them here would need further messages from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bistream.errors import BistreamError
from bistream.metrics import catalogue
from bistream.metrics.catalogue import Labels
from bistream.metrics.recorder import Recorder
from bistream.metrics.session_log import write_session_line
from bistream.sessions.playback import Playback
from bistream.sessions.session import CallerSession
from bistream.types import FinishReason


@dataclass
class Timestamps:
    """Times on the orchestrator's clock; None until reached. The four intervals of ``stages`` add up to the time to the first audio."""

    accepted_at: float  # by ``SessionRun``, when the start request was checked
    voice_ready_at: float | None = None  # by the speaker
    hop_sent_at: float | None = None  # by the speaker: of the hop that brought the first audio
    hop_done_at: float | None = None  # by the speaker: its answer is here
    first_audio_at: float | None = None  # by the speaker, after the server took the chunk

    def stages(self) -> dict[str, float]:
        """Seconds by stage; empty before the first audio, and for a session without hops."""
        times = (self.accepted_at, self.voice_ready_at, self.hop_sent_at, self.hop_done_at, self.first_audio_at)
        reached = [time for time in times if time is not None]
        if len(reached) < len(times):
            return {}
        return {stage: end - begin for stage, begin, end in zip(catalogue.OUTER_STAGES, reached, reached[1:], strict=False)}


class SessionMetrics:
    """Shared by all sessions of an orchestrator. Thread-safe."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        texts = catalogue.AUDIO_TTFP.labels["text"]
        self.first_audio = {text: recorder.histogram(catalogue.AUDIO_TTFP, text) for text in texts}
        self.real_time_factor = {text: recorder.histogram(catalogue.AUDIO_RTF, text) for text in texts}
        self.stages = {stage: recorder.histogram(catalogue.AUDIO_STAGE, stage) for stage in catalogue.OUTER_STAGES}
        self.continuity = {
            limit / 1000: recorder.counter(catalogue.AUDIO_CONTINUITY_OK, str(limit)) for limit in catalogue.CONTINUITY_THRESHOLDS_MS
        }
        self.chunk_gap = recorder.histogram(catalogue.AUDIO_CHUNK_GAP)
        self.underrun = recorder.histogram(catalogue.AUDIO_UNDERRUN)
        self.duration = recorder.histogram(catalogue.AUDIO_DURATION)
        self.audio_seconds = recorder.counter(catalogue.AUDIO_SECONDS)
        self.characters = recorder.counter(catalogue.TEXT_CHARACTERS)
        self.started = recorder.counter(catalogue.SESSION_STARTS)
        self.ended = {reason: recorder.counter(catalogue.SESSIONS_ENDED, reason) for reason in catalogue.END_REASONS}
        self._cancels = {by: recorder.counter(catalogue.SESSION_CANCELS, by) for by in catalogue.SESSION_CANCELS.labels["by"]}
        self._refused = {code: recorder.counter(catalogue.REQUESTS_REFUSED, code) for code in catalogue.ERROR_CODES}

    def refused(self, error: BistreamError) -> None:
        """A request was answered with an error at once; the session, if any, goes on."""
        self._refused.get(error.code, self._refused[BistreamError.code]).inc()

    def cancelled(self, by: str) -> None:
        self._cancels[by].inc()

    def watch(self, states: Callable[[], Mapping[str, int]], delivery_depth: Callable[[], int], load: Callable[[], float]) -> None:
        """Read these with every snapshot. states: open sessions by state. load: predicted load over capacity."""

        def sessions() -> dict[Labels, float]:
            return {(state,): float(count) for state, count in states().items()}

        self._recorder.read(catalogue.SESSIONS, sessions)
        self._recorder.read(catalogue.DELIVERY_QUEUE, lambda: {(): delivery_depth()})
        self._recorder.read(catalogue.LOAD, lambda: {(): load()})


class SessionRecord:
    """One session. Used by its speaker alone, except ``client_is_gone``."""

    def __init__(self, metrics: SessionMetrics, session: CallerSession, now: float, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self.marks = Timestamps(accepted_at=now)
        self.client_is_gone = False  # set before the session is ended for it
        self._metrics = metrics
        self._session = session
        self._text = "offline" if session.start.offline else "whole" if session.start.is_end else "pieces"
        self._samples = 0  # of the chunks that were sent
        self._last_chunk_at: float | None = None

    def voice_ready(self, now: float) -> None:
        self.marks.voice_ready_at = now

    def hop_done(self, sent_at: float, now: float) -> None:
        if self.marks.first_audio_at is None:
            self.marks.hop_sent_at, self.marks.hop_done_at = sent_at, now

    def chunk_sent(self, samples: int, now: float) -> None:
        metrics = self._metrics
        metrics.audio_seconds.inc(samples / self._sample_rate)
        self._samples += samples
        if self._last_chunk_at is None:
            self.marks.first_audio_at = now
            metrics.first_audio[self._text].observe(now - self.marks.accepted_at)
            for stage, seconds in self.marks.stages().items():
                metrics.stages[stage].observe(seconds)
        else:
            metrics.chunk_gap.observe(now - self._last_chunk_at)
        self._last_chunk_at = now

    def ended(self, tokens: int, playback: Playback) -> None:
        """tokens: speech tokens that came."""
        metrics, session, characters = self._metrics, self._session, self._session.text.characters
        reason = self._reason(session.finish_reason, session.error)
        metrics.ended[reason].inc()
        if reason in ("cancelled", "disconnected"):
            metrics.cancelled("request" if reason == "cancelled" else "disconnect")
        metrics.characters.inc(characters)
        audio_s = self._samples / self._sample_rate
        first_audio_s = None
        if self.marks.first_audio_at is not None and self._last_chunk_at is not None:
            first_audio_s = round(self.marks.first_audio_at - self.marks.accepted_at, 4)
            self._record_audio(audio_s, playback, self._last_chunk_at)
        write_session_line(
            id=session.id,
            voice=session.start.speaker_id or ("recording" if session.start.labels is None else "labels"),
            text=self._text,
            characters=characters,
            tokens=tokens,
            audio_s=round(audio_s, 3),
            first_audio_s=first_audio_s,
            stages_ms={stage: round(1000 * seconds, 1) for stage, seconds in self.marks.stages().items()},
            gaps=playback.underruns,
            gap_s=round(playback.underrun_s, 3),
            reason=reason,
        )

    def _record_audio(self, audio_s: float, playback: Playback, last_chunk_at: float) -> None:
        metrics = self._metrics
        metrics.duration.observe(audio_s)
        metrics.underrun.observe(playback.underrun_s)
        for threshold_s, counter in metrics.continuity.items():
            if playback.longest_underrun_s <= threshold_s:
                counter.inc()
        metrics.real_time_factor[self._text].observe((last_chunk_at - self.marks.accepted_at) / audio_s)

    def _reason(self, finish_reason: FinishReason | None, error: BistreamError | None) -> str:
        if error is not None:
            reason = "disconnected" if self.client_is_gone else error.code.lower()
            return reason if reason in catalogue.END_REASONS else BistreamError.code.lower()
        return FinishReason.EOS.value if finish_reason is None else finish_reason.value
