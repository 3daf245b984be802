"""Requests that take token2wav seconds do not silence the others: the order of answers shows it, no clock is read.

The inner model is called directly: the gate forbids it to clients, and nothing stands between its queue and the test.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import numpy as np

from bistream.checkpoints.config import FlowConfig
from bistream.config import RuntimeConfig
from bistream.keeper.server_process import TritonServer
from bistream.triton.startup import NICENESS
from tests.formats import MEL_FRAMES_PER_TOKEN
from tests.triton.keeper import processes_with
from tests.triton.requests import Answer, Stream, ask
from tests.triton.test_sessions import MODEL, Voice, check_audio

LONG_PROMPT_TOKENS = 750  # a recording of 30 s
LONG_PROMPTS = 4  # 30 pages and 10 reserved for each: the flow has room for no more
PIECES = [" And some more words follow.", " Then even more of them.", " This is the end."]


def prompt(tokens: int) -> dict[str, Any]:
    """The inputs of a voice; each call makes another one."""
    rng = np.random.default_rng(uuid.uuid4().int)
    flow = FlowConfig()
    return {
        "prompt_speech_tokens": rng.integers(0, flow.vocab_size, tokens).astype(np.int32),
        "prompt_speech_feat": rng.standard_normal((MEL_FRAMES_PER_TOKEN * tokens, flow.output_size)).astype(np.float32),
        "prompt_spk_embedding": np.ones(flow.spk_embed_dim, np.float32),
    }


def hop(stream: Stream, tokens: int, **values: Any) -> Answer:
    return stream.send("token2wav", session_id=uuid.uuid4().hex, target_speech_tokens=np.arange(tokens, dtype=np.int32), **values)


def finished(stream: Stream, answers: list[Answer]) -> int:
    """How many of all requests on this stream have their final response by now."""
    while not stream.stays_silent(0.0):
        stream.receive_one(answers[0])
    return sum(answer.finals for answer in answers)


def test_a_session_goes_on_while_the_longest_utterance_is_rendered(grpc_url: str, voice: Voice) -> None:
    tokens = RuntimeConfig().max_offline_tokens
    whole_id, session_id, text = uuid.uuid4().hex, uuid.uuid4().hex, "The first words of a text are enough to begin with."
    with Stream(grpc_url) as offline, Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text=text, is_end=False, **voice)
        stream.receive_audio(start)
        values: dict[str, Any] = {"target_speech_tokens": np.arange(tokens, dtype=np.int32), "session_id": whole_id, "speed": 0.5}
        whole = offline.send("token2wav", is_offline=True, **values, **prompt(50))
        for index, piece in enumerate(PIECES):
            is_end = index == len(PIECES) - 1
            stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=is_end)
            stream.receive_audio(start)
        check_audio(stream.receive(start), len(text + "".join(PIECES)))
        assert offline.stays_silent(0.0)
        assert ask(grpc_url, "token2wav", session_id=whole_id, is_cancel=True).error is None
        assert offline.receive_error(whole).code == "CANCELLED"


def test_a_new_session_does_not_wait_for_the_long_recordings_of_others(grpc_url: str) -> None:
    with Stream(grpc_url) as others, Stream(grpc_url) as stream:
        long = [hop(others, 18, finalize=True, **prompt(LONG_PROMPT_TOKENS)) for _ in range(LONG_PROMPTS)]
        short = stream.receive(hop(stream, 18, finalize=True, **prompt(10)))
        assert short.error is None and len(short.outputs) == 1
        assert finished(others, long) < LONG_PROMPTS  # some may have been before the short one was even sent
        for answer in long:
            others.receive(answer)
            assert answer.error is None and answer.waveform.size == short.waveform.size


def test_the_models_of_recordings_compute_at_a_lower_priority(server: TritonServer) -> None:
    """Of the main thread, which loads the model and runs ``execute``."""
    repository = server.settings.model_repository

    def niceness(model: str) -> int:
        (stub,) = processes_with(f"{repository}/{model}/")
        return os.getpriority(os.PRIO_PROCESS, stub)

    usual = niceness("token2wav")
    for model in ("audio_tokenizer", "speaker_embedding"):
        assert niceness(model) == min(19, usual + NICENESS)
