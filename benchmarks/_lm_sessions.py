"""Turn latencies of ``benchmarks/lm.py``: an idle engine, and many sessions that speak in real time."""

from __future__ import annotations

import heapq
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bistream.text2token.engine import EngineSequence, SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.torch_engine import TorchEngine

TOKENS_PER_SECOND = 25
TEXT_PER_TURN, SPEECH_PER_TURN = 5, 15
TURN_S = SPEECH_PER_TURN / TOKENS_PER_SECOND


@dataclass
class TurnClock:
    """A sink that records when the first and the last id of a turn arrived."""

    due: float
    first: float = 0.0
    last: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)

    def on_ids(self, ids: Sequence[int]) -> None:
        if not self.first:
            self.first = time.perf_counter()

    def on_end(self, result: TurnResult) -> None:
        assert result.end is TurnEnd.LENGTH, result
        self.last = time.perf_counter()
        self.done.set()


def limits(engine: TorchEngine) -> TurnLimits:
    """15 ids per turn, none of them a stop id, so that every run does the same work."""
    return TurnLimits(SPEECH_PER_TURN, forbidden=frozenset(engine.space.specials), record_on_length=engine.space.fill)


def prompt_ids(engine: TorchEngine, rng: random.Random, prompt_s: float) -> list[int]:
    """A voice of prompt_s seconds: about as many text and speech tokens as a real recording has."""
    space = engine.space
    text = [rng.randrange(space.text_vocab_size) for _ in range(int(prompt_s * 4))]
    speech = [space.speech_offset + rng.randrange(space.speech_token_size) for _ in range(int(prompt_s * TOKENS_PER_SECOND))]
    return [space.sos, *text, *speech]


def text_ids(engine: TorchEngine, rng: random.Random) -> list[int]:
    return [rng.randrange(engine.space.text_vocab_size) for _ in range(TEXT_PER_TURN)]


def idle_turn_ms(engine: TorchEngine, prompt: int, turns: int) -> tuple[float, float]:
    """Median times on an otherwise idle engine from appending 5 ids to the first new id, and to the 15th. prompt: number of ids before."""
    rng = random.Random(0)
    session = engine.open("idle", SamplingSpec(seed=1), prompt + (turns + 1) * (TEXT_PER_TURN + SPEECH_PER_TURN) + 1)
    ids = [rng.randrange(engine.space.text_vocab_size) for _ in range(prompt)]
    firsts, lasts = [], []
    for turn in range(turns + 1):
        clock = TurnClock(time.perf_counter())
        session.turn(ids if turn == 0 else text_ids(engine, rng), limits(engine), clock)
        clock.done.wait()
        if turn > 0:
            firsts.append((clock.first - clock.due) * 1e3)
            lasts.append((clock.last - clock.due) * 1e3)
        time.sleep(0.005)
    session.close()
    return statistics.median(firsts), statistics.median(lasts)


@dataclass
class Speaker:
    """One simulated session: its next turn is due every 0.6 s, whether or not the engine keeps up."""

    name: str
    start: float
    prompt_s: float
    turns: int
    session: EngineSequence | None = None
    clocks: list[TurnClock] = field(default_factory=list)


@dataclass(frozen=True)
class LoadResult:
    first_turn_ms: list[float]  # with the voice's prompt
    turn_ms: list[float]  # from due to 15th id, all turns
    first_id_ms: list[float]
    longest_late_ms: float  # how late the simulation itself began a turn
    tokens_per_s: float


def speak_in_real_time(engine: TorchEngine, sessions: int, seconds: float, seed: int = 0) -> LoadResult:
    """``sessions`` speakers with random starts within the first 2 s and prompts of 2 to 10 s, each for ``seconds``."""
    rng = random.Random(seed)
    turns = max(2, int(seconds / TURN_S))
    began = time.perf_counter() + 0.1
    speakers = [Speaker(f"s{number}", began + rng.uniform(0, 2), rng.uniform(2, 10), turns) for number in range(sessions)]
    ids = [prompt_ids(engine, rng, speaker.prompt_s) + text_ids(engine, rng) for speaker in speakers]
    queue = [(speaker.start, number, 0) for number, speaker in enumerate(speakers)]
    heapq.heapify(queue)
    late = 0.0
    while queue:
        due, number, turn = heapq.heappop(queue)
        speaker = speakers[number]
        time.sleep(max(0.0, due - time.perf_counter()))
        if turn > 0:
            speaker.clocks[-1].done.wait()
        late = max(late, time.perf_counter() - due)
        if speaker.session is None:
            room = len(ids[number]) + turns * (TEXT_PER_TURN + SPEECH_PER_TURN) + 1
            speaker.session = engine.open(speaker.name, SamplingSpec(seed=number), room)
        clock = TurnClock(due)
        speaker.clocks.append(clock)
        speaker.session.turn(ids[number] if turn == 0 else text_ids(engine, rng), limits(engine), clock)
        if turn + 1 < turns:
            heapq.heappush(queue, (due + TURN_S, number, turn + 1))
    for speaker in speakers:
        speaker.clocks[-1].done.wait()
        assert speaker.session is not None
        speaker.session.close()
    clocks = [clock for speaker in speakers for clock in speaker.clocks]
    end = max(clock.last for clock in clocks)
    return LoadResult(
        first_turn_ms=[(speaker.clocks[0].last - speaker.clocks[0].due) * 1e3 for speaker in speakers],
        turn_ms=[(clock.last - clock.due) * 1e3 for clock in clocks],
        first_id_ms=[(clock.first - clock.due) * 1e3 for clock in clocks],
        longest_late_ms=late * 1e3,
        tokens_per_s=len(clocks) * SPEECH_PER_TURN / (end - began),
    )
