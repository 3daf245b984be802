"""Recordings that arrive together at the voice models on the real server: each gets what it gets alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.triton.requests import Stream, ask

MODELS = {"audio_tokenizer": "prompt_speech_tokens", "speaker_embedding": "prompt_spk_embedding"}
LENGTHS = (8000, 12_345, 8000, 16_000, 9999, 12_345)


@pytest.mark.parametrize("model", MODELS)
def test_each_recording_gets_what_it_gets_alone(grpc_url: str, model: str) -> None:
    generator = np.random.default_rng(0)
    recordings = [(0.1 * generator.standard_normal((1, length))).astype(np.float32) for length in LENGTHS]
    with Stream(grpc_url) as stream:
        answers = [stream.send(model, reference_wav=recording) for recording in recordings]
        for answer in answers:
            stream.receive(answer)
    for recording, answer in zip(recordings, answers, strict=True):
        (found,) = answer.outputs
        (alone,) = ask(grpc_url, model, reference_wav=recording).outputs
        scale = 1e-5 * float(np.abs(alone[MODELS[model]]).max()) if model == "speaker_embedding" else 0.0
        np.testing.assert_allclose(found[MODELS[model]], alone[MODELS[model]], rtol=0, atol=scale)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("shape", "words"), [((2, 8000), "send it as FP32 [1, N]"), ((1, 100), "send at least 0.5 s")])
def test_wrong_recordings_are_refused(grpc_url: str, model: str, shape: tuple[int, int], words: str) -> None:
    with Stream(grpc_url) as stream:
        answer = stream.receive_error(stream.send(model, reference_wav=np.zeros(shape, np.float32)))
    assert answer.code == "INVALID_INPUT" and words in str(answer.error)
