"""Fakes for the orchestrator: models that count what they hold, a sender that counts its endings, a clock that the test moves."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bistream.errors import BistreamError, CancelledError, UnknownSessionError
from bistream.hops.speeds import SpeedRuns
from bistream.sessions.ports import BistreamRequest, Ports
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.types import (
    AudioChunk,
    AudioOptions,
    FinishReason,
    FloatArray,
    GenerationOptions,
    IntArray,
    SpeakerFeatures,
    SpeechTokens,
    TokenDemand,
    VoicePrompt,
)
from tests.formats import LOOKAHEAD_TOKENS, SAMPLES_PER_MEL_FRAME, SAMPLES_PER_TOKEN, VOCODER_OVERLAP_SAMPLES

WAIT_S = 120.0  # time limit for a thread; exceeding it is a failure, never a measurement
TOKENS_PER_BLOCK = 15
CHARS_PER_BLOCK = 5
TOKENS_AT_END = 10
PROMPT_TOKENS = 25


class FakeVoicePort:
    """fails: raised instead of an answer. gate: an answer waits for it."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.gate: threading.Event | None = None
        self.called = threading.Event()
        self.counted = threading.Condition()
        self.calls = 0

    def wait_calls(self, count: int) -> None:
        with self.counted:
            assert self.counted.wait_for(lambda: self.calls >= count, WAIT_S), f"{self.calls} of {count}"

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        with self.counted:
            self.calls += 1
            self.counted.notify_all()
        self.called.set()
        if self.gate is not None:
            assert self.gate.wait(WAIT_S)
        if self.fails is not None:
            raise self.fails
        return np.arange(len(reference_wav) // 640, dtype=np.int32)

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        return SpeakerFeatures(np.ones(192, np.float32), np.zeros((len(reference_wav) // 320, 80), np.float32))

    def speaker_of_labels(self, labels: Labels, seed: int) -> IntArray:
        """32 global tokens, all the seed, and the labels."""
        with self.counted:
            self.calls += 1
        if self.fails is not None:
            raise self.fails
        return np.array(SpeakerTokens((seed,) * 32, labels, pitch=200, speed=4).numbers, np.int32)


async def opened(gate: threading.Event) -> None:
    """Wait for it in the loop; a test sets it from another thread."""
    for _ in range(int(WAIT_S / 0.002)):
        if gate.is_set():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("the gate was never opened")


def fed(blocks: int) -> tuple[int, int]:
    """Characters and text tokens of so many blocks; a token has one character."""
    return blocks * CHARS_PER_BLOCK, blocks * CHARS_PER_BLOCK


class FakeLanguageModel:
    """15 tokens per 5 characters of text as they come, 10 more at the end. Token i of a session is i.

    fails_at[name]: raised by "start", "append" or the n-th message. holds_start: the start, and what follows it, arrives once it is set.
    """

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Queue[SpeechTokens]] = {}
        self.texts: dict[str, bytes] = {}
        self.starts: list[LanguageModelStart] = []
        self.appends: list[tuple[bytes, bool]] = []
        self.taken: Counter[str] = Counter()  # messages, by session
        self.counted = threading.Condition()
        self.counts: Counter[str] = Counter()  # of appends, renewals, cancels, and refusals of appends
        self.fails_at: dict[str | int, Exception] = {}
        self.holds_start: threading.Event | None = None
        self.line = asyncio.Lock()  # first come, first served
        self.start_sent = threading.Event()
        self.start_arrived = threading.Event()
        self.ends_with = FinishReason.EOS
        self.cuts = False  # the next piece of text is the last one that it speaks
        self.silent = False

    async def start(self, start: LanguageModelStart) -> None:
        self.start_sent.set()
        await self._start_has_arrived()
        if "start" in self.fails_at:
            raise self.fails_at["start"]
        assert start.session_id not in self.open
        self.starts.append(start)
        self.open[start.session_id] = asyncio.Queue()
        self.texts[start.session_id] = b""
        self._add(start.session_id, start.text, start.is_end)
        self.start_arrived.set()

    async def _start_has_arrived(self) -> None:
        async with self.line:
            if self.holds_start is not None:
                await opened(self.holds_start)

    def _add(self, session_id: str, text: bytes, is_end: bool) -> None:
        before = len(self.texts[session_id]) // CHARS_PER_BLOCK
        self.texts[session_id] += text
        length = len(self.texts[session_id])
        for block in range(before, length // CHARS_PER_BLOCK):
            tokens = tuple(range(block * TOKENS_PER_BLOCK, (block + 1) * TOKENS_PER_BLOCK))
            self.open[session_id].put_nowait(SpeechTokens(tokens, (block + 1) * CHARS_PER_BLOCK, None, False, *fed(block + 1)))
        if is_end or self.cuts:
            begin = length // CHARS_PER_BLOCK * TOKENS_PER_BLOCK
            tokens = () if self.silent else tuple(range(begin, begin + TOKENS_AT_END))
            self.open[session_id].put_nowait(SpeechTokens(tokens, length, self.ends_with, False, length, length))
        elif before < length // CHARS_PER_BLOCK:
            blocks = length // CHARS_PER_BLOCK
            self.open[session_id].put_nowait(SpeechTokens((), blocks * CHARS_PER_BLOCK, None, True, *fed(blocks)))

    async def take(self, session_id: str, demand: TokenDemand) -> SpeechTokens:
        assert demand.tokens > 0
        if session_id not in self.open:
            raise UnknownSessionError("unknown", session_id)
        message = await self.open[session_id].get()
        count = self.taken[session_id]
        self.taken[session_id] += 1
        if message.is_final or count in self.fails_at:
            self.open.pop(session_id, None)
        if count in self.fails_at:
            raise self.fails_at[count]
        return message

    async def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        await self._start_has_arrived()
        if "append" in self.fails_at:
            raise self.fails_at["append"]
        if session_id not in self.open:
            self._count("refusals")
            raise UnknownSessionError("unknown", session_id)
        self._add(session_id, text, is_end)
        if text or is_end:
            self.appends.append((text, is_end))
            self._count("appends")
        else:
            self._count("renewals")

    async def cancel(self, session_id: str) -> None:
        await self._start_has_arrived()
        if (messages := self.open.pop(session_id, None)) is not None:
            messages.put_nowait(SpeechTokens((), 0, FinishReason.CANCELLED))
        self._count("cancels")

    def _count(self, name: str) -> None:
        with self.counted:
            self.counts[name] += 1
            self.counted.notify_all()

    def wait_counted(self, name: str, count: int = 1) -> None:
        with self.counted:
            assert self.counted.wait_for(lambda: self.counts[name] >= count, WAIT_S), f"{name}: {self.counts[name]} of {count}"


def heard_samples(speeds: Sequence[float], is_all: bool) -> int:
    """Of tokens at these speeds; is_all: nothing is withheld."""
    runs = SpeedRuns()
    for speed in speeds if is_all else speeds[: max(0, len(speeds) - LOOKAHEAD_TOKENS)]:
        runs.add(SAMPLES_PER_TOKEN // SAMPLES_PER_MEL_FRAME, speed)
    return runs.heard * SAMPLES_PER_MEL_FRAME if is_all else max(0, runs.heard * SAMPLES_PER_MEL_FRAME - VOCODER_OVERLAP_SAMPLES)


class FakeToken2Wav:
    """Sample i of a session is the number i; lengths follow the stages' arithmetic (lookahead, speeds, overlap)."""

    def __init__(self) -> None:
        self.open: dict[str, list[float]] = {}  # the speed of every token
        self.hops: list[Token2WavHop] = []
        self.renewals: queue.SimpleQueue[Token2WavHop] = queue.SimpleQueue()
        self.speeds: list[float] = []
        self.marked: list[bool] = []  # whole utterances
        self.cancels = 0
        self.fails_at: dict[int, Exception] = {}
        self.gates: dict[int, threading.Event] = {}  # hop index -> the event it waits for
        self.reached: dict[int, threading.Event] = {}
        self.cancel_opens_gates = False
        self.load: LoadReport | None = None

    def hold(self, hop: int = 0) -> tuple[threading.Event, threading.Event]:
        """Of a hop: its answer waits for the first event, and the second is set when it is asked for."""
        self.gates[hop], self.reached[hop] = threading.Event(), threading.Event()
        return self.gates[hop], self.reached[hop]

    async def hop(self, hop: Token2WavHop) -> FloatArray:
        if hop.prompt is None and not hop.token_ids and not hop.finalize:
            self.renewals.put(hop)
        index = len(self.hops)
        self.hops.append(hop)
        if hop.prompt is not None:
            assert hop.session_id not in self.open
            self.open[hop.session_id] = []
        if index in self.reached:
            self.reached[index].set()
        if index in self.gates:
            await opened(self.gates[index])
        if index in self.fails_at:
            raise self.fails_at[index]
        if hop.session_id not in self.open:
            raise UnknownSessionError("unknown", hop.session_id)
        tokens = self.open[hop.session_id]
        begin = heard_samples(tokens, is_all=False)
        assert tuple(range(len(tokens), len(tokens) + len(hop.token_ids))) == hop.token_ids
        tokens.extend([hop.speed] * len(hop.token_ids))
        if hop.finalize:
            del self.open[hop.session_id]
        return np.arange(begin, max(begin, heard_samples(tokens, hop.finalize)), dtype=np.float32)

    async def synthesize(
        self, token_ids: Sequence[int], prompt: VoicePrompt, audio: AudioOptions, speed: float, session_id: str
    ) -> FloatArray:
        self.speeds.append(speed)
        self.marked.append(audio.is_marked)
        if 0 in self.fails_at:
            raise self.fails_at[0]
        if 0 in self.gates:
            self.open[session_id] = []
            self.reached[0].set()
            await opened(self.gates[0])
            raise CancelledError("cancelled", session_id)
        return np.arange(int(len(token_ids) * SAMPLES_PER_TOKEN / speed), dtype=np.float32)

    def report(self) -> LoadReport | None:
        return self.load

    async def cancel(self, session_id: str) -> None:
        self.cancels += 1
        if self.open.pop(session_id, None) is not None and self.cancel_opens_gates:
            for gate in self.gates.values():
                gate.set()


class FakeSender:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.chunks: list[AudioChunk] = []
        self.endings: list[BistreamError | None] = []
        self.gone = False
        self.calls_after_end = 0
        self.heard: AudioChunk | None = None  # the answer to a cancel

    async def send(self, chunk: AudioChunk) -> None:
        with self.changed:
            self.calls_after_end += bool(self.endings)
            self.chunks.append(chunk)
            self.changed.notify_all()

    def report(self, heard: AudioChunk) -> None:
        self.heard = heard

    def finish(self, error: BistreamError | None) -> None:
        with self.changed:
            self.endings.append(error)
            self.changed.notify_all()

    def is_cancelled(self) -> bool:
        return self.gone

    def wait(self) -> BistreamError | None:
        """How the request ended."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.endings, WAIT_S), "the request was never answered"
            return self.endings[0]

    def wait_chunks(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.chunks) >= count, WAIT_S), "no audio came"

    @property
    def waveform(self) -> FloatArray:
        return np.concatenate([chunk.waveform for chunk in self.chunks]) if self.chunks else np.zeros(0, np.float32)


class FakeModels:
    def __init__(self) -> None:
        self.voice = FakeVoicePort()
        self.language_model = FakeLanguageModel()
        self.token2wav = FakeToken2Wav()
        self.ports = Ports(self.voice, self.language_model, self.token2wav)

    @property
    def held(self) -> int:
        return len(self.language_model.open) + len(self.token2wav.open)


REFERENCE = (np.arange(16000, dtype=np.float32) % 100) / 200.0


def request_of(**values: Any) -> BistreamRequest:
    """A request by the names of its inputs."""
    options = {one.name: values.pop(one.name) for one in dataclasses.fields(GenerationOptions) if one.name in values}
    return BistreamRequest(**{"options": GenerationOptions(**options), **values})


def start_request(text: str | bytes = b"Hello world.", session_id: str | None = "s", **changes: object) -> BistreamRequest:
    """A valid start with all its text, modified by ``changes``."""
    data = text.encode() if isinstance(text, str) else text
    values: dict[str, object] = {"target_text": data, "session_id": session_id, "reference_wav": REFERENCE, "reference_text": "Reference."}
    return request_of(**(values | changes))


def append_request(
    text: str | bytes = b"", is_end: bool = False, session_id: str | None = "s", speed: float | None = None
) -> BistreamRequest:
    data = text.encode() if isinstance(text, str) else text
    return BistreamRequest(target_text=data, session_id=session_id, is_start=False, is_end=is_end, speed=speed)


def cancel_request(session_id: str | None = "s") -> BistreamRequest:
    return BistreamRequest(session_id=session_id, is_cancel=True)
