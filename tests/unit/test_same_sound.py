"""Equal text, voice and seed give equal samples, whoever else is served: real stages on a tiny random model, on the CPU."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.local import LocalPipeline, QueueSender
from bistream.sessions.ports import BistreamRequest
from bistream.types import FloatArray, GenerationOptions
from tests.sounds import speech_like

SESSIONS, DIFFERENT = 6, 4
TEXTS = ("Hi", "你好", "Hi", "你好")


@dataclass(frozen=True)
class Speech:
    """in_pieces: the text comes cut after each few characters; otherwise in one request."""

    text: str
    seed: int
    voice_seconds: float
    in_pieces: int

    def voice(self) -> FloatArray:
        return speech_like(int(16000 * self.voice_seconds), self.seed)


def speeches() -> list[Speech]:
    """Voices of 25 and 30 speech tokens: other phases of blocks and chunks."""
    return [Speech(TEXTS[k % 4], k, (1.0, 1.2)[k // 2], (0, 1)[(k + k // 2) % 2]) for k in range(DIFFERENT)]


class Conversation:
    """One session. Texts in pieces are shorter than a block of text, so that they cannot be paused where that would be heard: the language
    model speaks once all of it is there."""

    def __init__(self, pipeline: LocalPipeline, speech: Speech) -> None:
        self._sender = QueueSender()
        text, step = speech.text.encode(), speech.in_pieces or len(speech.text.encode())
        pieces = [text[begin : begin + step] for begin in range(0, len(text), step)]
        session_id = uuid.uuid4().hex
        start = BistreamRequest(
            target_text=pieces[0],
            reference_wav=speech.voice(),
            reference_text="A tone.",
            session_id=session_id,
            is_end=len(pieces) == 1,
            options=GenerationOptions(seed=speech.seed),
        )
        pipeline._orchestrator.handle(start, self._sender)
        for number, piece in enumerate(pieces[1:], 2):
            request = BistreamRequest(target_text=piece, session_id=session_id, is_start=False, is_end=number == len(pieces))
            answer = QueueSender()
            pipeline._orchestrator.handle(request, answer)
            assert not list(answer)

    def chunks(self) -> list[FloatArray]:
        return [chunk.waveform for chunk in self._sender]


@pytest.fixture(scope="module")
def pipeline(tiny_model_dir: Path) -> Iterator[LocalPipeline]:
    config = RuntimeConfig(
        model_dir=str(tiny_model_dir),
        device="cpu",
        dtype="float32",
        num_threads=1,
        max_sessions=SESSIONS,
        max_voice_analyses=SESSIONS,
        max_session_tokens=1024,
        kv_cache_tokens=49152,
        flow_state_mb=512,
        admission_load=0.0,
    )
    with LocalPipeline(config) as pipeline:
        yield pipeline


def test_interleaved_sessions_sound_as_each_does_alone(pipeline: LocalPipeline) -> None:
    alone = [Conversation(pipeline, speech).chunks() for speech in speeches()]
    assert all(len(chunks) >= 3 for chunks in alone)
    together = [Conversation(pipeline, speech) for speech in [*speeches(), *speeches()][:SESSIONS]]
    for number, conversation in enumerate(together):
        chunks, expected = conversation.chunks(), alone[number % DIFFERENT]
        assert [len(chunk) for chunk in chunks] == [len(chunk) for chunk in expected], number
        for index, (chunk, other) in enumerate(zip(chunks, expected, strict=True)):
            np.testing.assert_array_equal(chunk, other, f"session {number}, chunk {index}")
