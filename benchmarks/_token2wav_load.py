"""How many sessions can speak in real time at once, for ``benchmarks/token2wav.py``.

Every session speaks one utterance after another. Its speech tokens arrive at a fixed rate, the hop policy decides when a hop is
due, and the real stages serve due hops in batches (first hops first, then the earliest deadline). Only the clock is simulated: it
skips idle time and advances by the measured time of each batch.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from benchmarks._token2wav_rig import Rig, Session
from bistream.orchestration.hop_policy import HopPolicy, HopProgress
from bistream.rates import LOOKAHEAD_TOKENS, MEL_FRAMES_PER_SECOND, SPEECH_TOKENS_PER_SECOND, VOCODER_OVERLAP_FRAMES
from bistream.token2wav.hop_queue import BatchPace, HopQueue
from bistream.token2wav.turns import FIRST_TOKENS_PER_S, Turns
from bistream.types import VoicePrompt

TOKENS_PER_S = 50.0  # of the language model, per session: twice real time
PAUSE_S = (0.0, 1.0)  # between a session's utterances
# Audio held back until the next hop: lookahead of the flow, overlap of the vocoder.
_HELD_BACK_S = LOOKAHEAD_TOKENS / SPEECH_TOKENS_PER_SECOND + VOCODER_OVERLAP_FRAMES / MEL_FRAMES_PER_SECOND


@dataclass(eq=False)
class _Speaker:
    """One session and the utterance that it speaks. Times in seconds of the simulated clock."""

    voice: VoicePrompt
    begin_s: float
    total: int  # tokens of the utterance
    session: Session | None = None
    sent: int = 0
    played_until_s: float = 0.0  # when its listener's buffer underruns
    heard: bool = False
    latency_s: float = 0.0
    waiting: bool = False  # its hop is in the queue

    def received(self, now: float) -> int:
        return min(self.total, int((now - self.begin_s) * TOKENS_PER_S))

    def progress(self, now: float) -> HopProgress:
        received = self.received(now)
        return HopProgress(
            prompt_tokens=len(self.voice.speech_tokens),
            received_tokens=received,
            sent_tokens=self.sent,
            has_ended=received == self.total,
            playback_buffer_s=max(0.0, self.played_until_s - now) if self.heard else 0.0,
            hop_latency_s=self.latency_s,
        )


@dataclass
class LoadResult:
    """busy: fraction of the time in which the device worked. late_ms: delays of hops that came after an underrun."""

    sessions: int
    hops: int = 0
    late: int = 0
    busy_s: float = 0.0
    seconds: float = 0.0
    audio_s: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)

    @property
    def busy(self) -> float:
        return self.busy_s / self.seconds

    @property
    def on_time(self) -> float:
        return 1.0 - self.late / max(1, self.hops)


class Load:
    """``count`` sessions over ``voices``; utterances of ``speech_s`` (shortest, longest)."""

    def __init__(self, rig: Rig, voices: list[VoicePrompt], count: int, speech_s: tuple[float, float], seed: int = 0) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.speech_s = speech_s
        self.policy = HopPolicy()
        self.turns = Turns(BatchPace(FIRST_TOKENS_PER_S), max_suspensions=0)
        self.queue: HopQueue[tuple[_Speaker, int, bool, float]] = HopQueue()
        # The first utterances begin at random times within 2 s.
        self.speakers = [self._utterance(self.rng.choice(voices), self.rng.uniform(0, 2.0)) for _ in range(count)]
        self.due: list[tuple[float, int, _Speaker]] = [(speaker.begin_s, index, speaker) for index, speaker in enumerate(self.speakers)]
        heapq.heapify(self.due)
        self.counter = count

    def run(self, warm_s: float, measured_s: float) -> LoadResult:
        """Simulate; only batches that end after ``warm_s`` count."""
        now, result = 0.0, LoadResult(len(self.speakers), seconds=measured_s)
        while now < warm_s + measured_s:
            while self.due and self.due[0][0] <= now:
                self._consider(heapq.heappop(self.due)[2], now)
            batch = [hop.item for hop in self.turns.next_batch(self.queue, now)]
            if not batch:
                now = self.due[0][0]
                continue
            taken = self._serve(batch, now)
            now += taken
            self._answer(batch, now, result if now > warm_s else LoadResult(0))
            if now > warm_s:
                result.busy_s += taken
        for speaker in self.speakers:
            if speaker.session is not None:
                speaker.session.close()
        return result

    def _utterance(self, voice: VoicePrompt, begin_s: float) -> _Speaker:
        return _Speaker(voice, begin_s, int(self.rng.uniform(*self.speech_s) * SPEECH_TOKENS_PER_SECOND))

    def _consider(self, speaker: _Speaker, now: float) -> None:
        """Queue the speaker's next hop if it is due; otherwise check again later."""
        if speaker.waiting:
            return
        progress = speaker.progress(now)
        count = self.policy.next_hop(progress)
        if count is None:
            wait = 0.02
            again = self.policy.recheck_after_s(progress)
            self._later(speaker, now + (wait if again is None else max(0.001, min(wait, again))))
            return
        is_final = progress.has_ended and count == progress.pending_tokens
        speaker.waiting = True
        deadline = speaker.played_until_s if speaker.heard else now
        if not speaker.heard:
            self.turns.arrivals.came(now)
        self.queue.push((speaker, count, is_final, now), is_first=not speaker.heard, deadline_s=deadline, tokens=count)

    def _serve(self, batch: list[tuple[_Speaker, int, bool, float]], now: float) -> float:
        """Compute a batch; returns the seconds it took."""
        for speaker, _, _, _ in batch:
            if speaker.session is None:
                speaker.session = self.rig.open(speaker.voice, id(speaker))
        sessions = [speaker.session for speaker, _, _, _ in batch if speaker.session is not None]
        counts, ends = [item[1] for item in batch], [item[2] for item in batch]
        taken = self.rig.time_ms(lambda: self.rig.hop(sessions, counts, ends)) / 1e3
        self.turns.pace.observe(sum(counts), taken)
        return taken

    def _answer(self, batch: list[tuple[_Speaker, int, bool, float]], now: float, result: LoadResult) -> None:
        for speaker, count, is_final, asked in batch:
            is_first = not speaker.heard
            audio_s = count / SPEECH_TOKENS_PER_SECOND + _HELD_BACK_S * (int(is_final) - int(is_first))
            result.hops += 1
            result.audio_s += audio_s
            if is_first:
                result.first_ms.append((now - asked) * 1e3)
                speaker.played_until_s = now
            elif now > speaker.played_until_s:
                result.late += 1
                result.late_ms.append((now - speaker.played_until_s) * 1e3)
                speaker.played_until_s = now
            speaker.heard, speaker.waiting = True, False
            speaker.played_until_s += audio_s
            speaker.sent += count
            speaker.latency_s = now - asked
            if is_final:
                self._restart(speaker, now)
            else:
                self._later(speaker, now)

    def _restart(self, speaker: _Speaker, now: float) -> None:
        """The next utterance of this session, after the listener has heard this one and a pause."""
        assert speaker.session is not None
        speaker.session.close()
        index = self.speakers.index(speaker)
        begin = max(now, speaker.played_until_s) + self.rng.uniform(*PAUSE_S)
        self.speakers[index] = self._utterance(speaker.voice, begin)
        self._later(self.speakers[index], begin)

    def _later(self, speaker: _Speaker, when: float) -> None:
        self.counter += 1
        heapq.heappush(self.due, (when, self.counter, speaker))
