"""Decides whether another session fits: compares the audio rate promised to live sessions with what token2wav can make. Pure.

A listener plays one second per second until all speech of its session is made. So a session counts 1, or its ``speed``, as long as
tokens or text may come or tokens wait, then 0. As long as the sum is below the capacity, the audio that all listeners have left does not
shrink. (Counting less for a session with audio left was tried: all buffers shrink together, hops with them, and small hops cost most.)

A session without audio yet counts ``FIRST_HOP_RATE`` more for its first second, for the first hop and the small one right after it; that
also bounds how many first hops wait for each other. The sum over the capacity is the load.

Flow state: a session may need a page for each second of its speech, beside those of its voice, which sessions with the same voice share.
The length of speech is estimated from its text where all of it is there, else from the sessions that have ended. The pages of all
sessions together must exist, or the flow would have to forget the beginnings of their speech. Without a limit of the load (target 0) only
what token2wav reserves for them must: a session for which that is missing would fail when its first audio is due.

The only session is never refused. Before token2wav has reported, ``ASSUMED_CAPACITY`` alone bounds a first burst of starts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.contract.refusals import flow_state_taken, server_full
from bistream.families.audio_format import AudioFormat
from bistream.sessions.request_checks import SessionStart
from bistream.token2wav.load_report import LoadReport

FIRST_HOP_RATE = 1.5
FIRST_HOP_S = 1.0
RECOUNT_S, FEW = 0.2, 16  # between two counts of more than a few sessions; those admitted meanwhile are added
LATE_SHARE, MIN_LATE = 0.05, 2  # of the sessions have listeners that wait for this server: beyond it no session is admitted
FIRST_SECONDS_PER_BYTE = 1 / 12  # of UTF-8, before sessions have ended; English and Chinese are both near 1 / 14
FIRST_TEXT_BYTES = 60.0  # a sentence
FIRST_LENGTH_S = 30.0  # of texts in pieces, as the automatic size of the flow state assumes
LENGTHS, LENGTH_QUANTILE, LENGTH_MARGIN = 64, 0.9, 1.25
RUNNING_MEAN = 16  # sessions that the pace of whole texts is a mean of, about
ASSUMED_CAPACITY = 750.0  # audio seconds per second before the first report of a measured one: of the fastest GPU that was tried
MIN_RETRY_S, MAX_RETRY_S, FIRST_RETRY_S = 0.5, 30.0, 2.0
RATE_WINDOW_S = 10.0  # in which ended and refused sessions are counted
UNKNOWN_VOICE_PAGES = 10  # of a registered voice that has not been read
COMPARED_SAMPLES = 64  # of two recordings with the same length and transcript
LEAST_RESERVED_S = 4.0  # the longest hop: a short text can become longer speech than expected


@dataclass(frozen=True)
class Need:
    """What one session still needs. rate: audio seconds per second. pages: of flow state at most, without those of its voice.

    reserved: pages that token2wav keeps for it whatever happens, beside those of its voice.
    voice: sessions with an equal one share its pages. is_late: its listener hears a gap.
    """

    rate: float
    pages: float = 0.0
    reserved: float = 0.0
    voice: Hashable = None
    voice_pages: int = 0
    is_late: bool = False


NOTHING = Need(0.0)


class Lengths:
    """Estimates how long the speech of a session will be, from those that have ended. At most ``longest_s``, if that is not 0."""

    def __init__(self, longest_s: float = 0.0) -> None:
        self._longest_s = longest_s or math.inf
        self._mean_bytes, self._mean_s = FIRST_TEXT_BYTES, FIRST_TEXT_BYTES * FIRST_SECONDS_PER_BYTE  # of whole texts, of their speech
        self._in_pieces: deque[float] = deque([FIRST_LENGTH_S], maxlen=LENGTHS)
        self._long_s = FIRST_LENGTH_S  # most sessions with text in pieces are shorter

    def expected_s(self, text_bytes: int | None, made_s: float = 0.0) -> float:
        """text_bytes: all of the text; 0: ``made_s`` is all of the speech; None: more may come. made_s: speech that exists already."""
        if text_bytes is not None:
            expected_s = LENGTH_MARGIN * text_bytes * self._mean_s / self._mean_bytes
        else:
            expected_s = self._long_s if made_s < self._long_s else LENGTH_MARGIN * made_s
        return min(self._longest_s, max(made_s, expected_s))

    def ended(self, text_bytes: int | None, audio_s: float) -> None:
        """The pace is that of all texts together: short ones, with their pauses at both ends, say little about long ones."""
        if text_bytes:
            self._mean_bytes += (text_bytes - self._mean_bytes) / RUNNING_MEAN
            self._mean_s += (audio_s - self._mean_s) / RUNNING_MEAN
        elif text_bytes is None:
            self._in_pieces.append(audio_s)
            self._long_s = sorted(self._in_pieces)[math.ceil(LENGTH_QUANTILE * (len(self._in_pieces) - 1))]


@dataclass(frozen=True)
class SessionLoad:
    """One live session.

    age_s: since its start. buffer_s: audio ahead of its listener. made_s: speech (at the usual speed) of the audio that was sent.
    received_s: speech of the tokens that came. tokens_ended, text_ended: no more will come. hop_waits: token2wav has a hop of it.
    voice_tokens: None until the voice is ready. reserved_s: speech for which token2wav reserves flow state, as it was when the session was
    admitted; None: as much as usual. speed: seconds of speech that are heard in one.
    """

    age_s: float = 0.0
    buffer_s: float = 0.0
    made_s: float = 0.0
    received_s: float = 0.0
    tokens_ended: bool = False
    text_ended: bool = False
    hop_waits: bool = False
    has_ended: bool = False
    voice_tokens: int | None = None
    reserved_s: float | None = None
    speed: float = 1.0


def text_bytes(start: SessionStart) -> int | None:
    """Bytes of the whole text; None: more may come."""
    return len(start.text) if start.is_end else None


def reserved_speech_s(start: SessionStart, lengths: Lengths) -> float:
    """Speech for which a session that starts now is sure of flow state; token2wav reserves its usual amount at most."""
    if start.source_wav is not None:
        return lengths.expected_s(0, len(start.source_wav) / REFERENCE_SAMPLE_RATE)
    return max(LEAST_RESERVED_S, lengths.expected_s(text_bytes(start)))


def need_of(start: SessionStart, standing: SessionLoad, report: LoadReport, lengths: Lengths, audio_format: AudioFormat) -> Need:
    """Offline sessions have no listener and no flow state; one that has ended gives everything back at once."""
    if start.offline or standing.has_ended:
        return Need(0.0)
    waits_for_server = standing.hop_waits or (standing.text_ended and not standing.tokens_ended)
    is_made = standing.tokens_ended and standing.received_s <= standing.made_s
    waits_for_first = standing.made_s == 0.0 and standing.age_s < FIRST_HOP_S
    return Need(
        rate=0.0 if is_made else standing.speed * (1.0 + FIRST_HOP_RATE * waits_for_first),
        pages=_pages(start, standing, report, lengths),
        reserved=_reserved_pages(standing, report),
        voice=_voice(start),
        voice_pages=_voice_pages(start, standing, audio_format),
        is_late=standing.made_s > 0.0 and standing.buffer_s <= 0.0 and waits_for_server,
    )


def _reserved_pages(standing: SessionLoad, report: LoadReport) -> int:
    """As token2wav reserves them. With bounded left context every session has the usual number, and never more."""
    if standing.reserved_s is None or report.most_pages == report.reserve_pages:
        return report.reserve_pages
    return min(report.reserve_pages, max(1, math.ceil(standing.reserved_s)))


def _pages(start: SessionStart, standing: SessionLoad, report: LoadReport, lengths: Lengths) -> float:
    known = lengths.expected_s(0 if standing.tokens_ended else text_bytes(start), standing.received_s)
    if start.source_wav is not None:
        known = lengths.expected_s(0, len(start.source_wav) / REFERENCE_SAMPLE_RATE)
    return min(report.most_pages or math.inf, max(_reserved_pages(standing, report), known))


def _voice(start: SessionStart) -> Hashable:
    """Equal for sessions that share the state of their voice. Of a recording a few samples are compared: all of it takes milliseconds."""
    if start.reference_wav is None:
        return start.reference_hash or start.speaker_id
    wav = start.reference_wav
    return len(wav), start.reference_text, wav[:: max(1, len(wav) // COMPARED_SAMPLES)].tobytes()


def _voice_pages(start: SessionStart, standing: SessionLoad, audio_format: AudioFormat) -> int:
    if standing.voice_tokens is not None:
        return standing.voice_tokens // audio_format.chunk_tokens
    if start.voice is not None:
        return len(start.voice.speech_tokens) // audio_format.chunk_tokens
    if start.reference_wav is None:
        return UNKNOWN_VOICE_PAGES
    return int(len(start.reference_wav) / REFERENCE_SAMPLE_RATE * audio_format.tokens_per_second) // audio_format.chunk_tokens


@dataclass
class _Count:
    """Of all live sessions, at one moment; starts are added until the next count."""

    at_s: float = -math.inf
    sessions: int = 0
    rate: float = 0.0
    pages: float = 0.0
    reserved: float = 0.0
    late: int = 0
    voice_pages: int = 0
    voices: dict[Hashable, int] = field(default_factory=dict)  # pages

    def add(self, need: Need) -> None:
        self._add(need, 1)
        if need.voice not in self.voices or self.voices[need.voice] < need.voice_pages:
            self.voice_pages += need.voice_pages - self.voices.get(need.voice, 0)
            self.voices[need.voice] = need.voice_pages

    def remove(self, need: Need) -> None:
        """The pages of its voice may be another one's, too, and stay."""
        if need is not NOTHING:
            self._add(need, -1)

    def _add(self, need: Need, times: int) -> None:
        self.sessions += times
        self.rate += times * need.rate
        self.pages += times * need.pages
        self.reserved += times * need.reserved
        self.late += times * need.is_late


class LoadControl:
    """Not thread-safe: it belongs to the orchestrator's event loop.

    target: the highest load that a start may cause; 0: any. report: the latest of token2wav. live: the needs of the sessions that were
    admitted and have not ended. longest_s: as for ``Lengths``.
    """

    def __init__(
        self,
        target: float,
        report: Callable[[], LoadReport | None],
        live: Callable[[], Iterable[Need]],
        clock: Callable[[], float],
        longest_s: float = 0.0,
    ) -> None:
        self._target = target
        self._latest_report = report
        self._live = live
        self._clock = clock
        self._count = _Count()
        self.report = LoadReport()  # the last one that was read
        self._ended: deque[float] = deque()
        self._refused: deque[float] = deque()
        self.lengths = Lengths(longest_s)

    def admit(self, need: Need) -> None:
        """Count another session. Raises ``BusyError`` when its promise, or that of another one, could not be kept."""
        count = self._counted(self._clock())
        if count.sessions:
            if self._target and need.rate:
                self._check_pace(need, count)
            self._check_pages(need, count)
        count.add(need)

    def retry_after_s(self, sessions: float = 1.0) -> float:
        """Until about this many sessions have ended, after those that were refused before and may come back."""
        self._forget_old()
        refused = len(self._refused)
        self._refused.append(self._clock())
        if not self._ended:
            return FIRST_RETRY_S
        return min(MAX_RETRY_S, max(MIN_RETRY_S, (sessions + refused) * RATE_WINDOW_S / len(self._ended)))

    def ended(self, text_bytes: int | None, audio_s: float, need: Need = NOTHING) -> None:
        """A session's place is free; it had ``audio_s`` seconds of audio. text_bytes: as for ``Lengths``. need: as it was counted last."""
        self._count.remove(need)
        self._forget_old()
        self._ended.append(self._clock())
        if audio_s > 0.0:
            self.lengths.ended(text_bytes, audio_s)

    def _forget_old(self) -> None:
        for times in (self._ended, self._refused):
            while times and times[0] < self._clock() - RATE_WINDOW_S:
                times.popleft()

    def load(self) -> float:
        """What is promised over the capacity; 0 while that is unknown."""
        count = self._counted(self._clock())
        return count.rate / self.report.capacity if self.report.capacity else 0.0

    def _check_pace(self, need: Need, count: _Count) -> None:
        excess = count.rate + min(1.0, need.rate) - self._target * (self.report.capacity or ASSUMED_CAPACITY)
        if excess > 0.0:
            raise server_full(self.retry_after_s(excess))
        if count.late >= max(MIN_LATE, LATE_SHARE * count.sessions):
            raise server_full(self.retry_after_s(count.late))

    def _check_pages(self, need: Need, count: _Count) -> None:
        pages, live = (need.pages, count.pages) if self._target else (need.reserved, count.reserved)
        if not (self.report.pages and pages):
            return
        live += count.voice_pages
        pages += 0 if need.voice in count.voices else need.voice_pages
        missing = live + pages - self.report.pages
        if missing > 0.0:
            raise flow_state_taken(self.retry_after_s(missing / max(1.0, live / count.sessions)))

    def _counted(self, now: float) -> _Count:
        if now - self._count.at_s >= RECOUNT_S or self._count.sessions <= FEW:
            self._count = _Count(now)
            for need in self._live():
                self._count.add(need)
            self.report = self._latest_report() or self.report
        return self._count
