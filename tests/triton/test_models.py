"""The models behind the front model, called directly, and ``cosyvoice2`` with the requests of upstream's clients."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bistream.checkpoints.config import FlowConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.types import FinishReason
from tests.formats import SAMPLES_PER_TOKEN
from tests.triton.requests import Answer, Stream, ask

EMBEDDING = np.ones(FlowConfig().spk_embed_dim, np.float32)


def upstream_inputs(reference_wav: NDArray[np.float32], text: str, padding_s: int) -> dict[str, Any]:
    """As upstream's gRPC client: zero-padded to a multiple of ``padding_s``, with the true length in a second input."""
    block = padding_s * REFERENCE_SAMPLE_RATE
    padded = np.zeros((1, -(-reference_wav.size // block) * block), np.float32)
    padded[0, : reference_wav.size] = reference_wav[0]
    return {"reference_wav": padded, "reference_wav_len": reference_wav.size, "reference_text": "A reference.", "target_text": text}


def test_audio_tokenizer(grpc_url: str, reference_wav: NDArray[np.float32]) -> None:
    whole = ask(grpc_url, "audio_tokenizer", reference_wav=reference_wav)
    cut = ask(grpc_url, "audio_tokenizer", reference_wav=reference_wav, reference_wav_len=8000)
    assert whole.outputs[0]["prompt_speech_tokens"].shape == (25,)
    assert cut.outputs[0]["prompt_speech_tokens"].shape == (13,)


def test_speaker_embedding(grpc_url: str, reference_wav: NDArray[np.float32]) -> None:
    answer = ask(grpc_url, "speaker_embedding", reference_wav=reference_wav)
    embedding = answer.outputs[0]["prompt_spk_embedding"]
    assert embedding.shape == EMBEDDING.shape and np.isfinite(embedding).all()


@pytest.mark.parametrize("model", ["audio_tokenizer", "speaker_embedding"])
def test_a_broken_recording_is_refused_by_its_model(grpc_url: str, model: str) -> None:
    with Stream(grpc_url) as stream:
        answer = stream.receive_error(stream.send(model, reference_wav=np.full((1, 16000), np.nan, np.float32)))
    assert answer.code == "INVALID_INPUT"


def test_llm_bistream_streams_speech_tokens(grpc_url: str) -> None:
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send("llm_bistream", session_id=session_id, text="Good ", is_end=False)
        appended = stream.receive(stream.send("llm_bistream", session_id=session_id, text="morning.", is_start=False, is_end=True))
        stream.receive(start)
    assert appended.error is None and start.error is None
    assert start.finals == 1 and start.last_is_empty
    tokens = np.concatenate([output["speech_token_ids"] for output in start.outputs])
    assert tokens.size > 0 and tokens.min() >= 0 and tokens.max() < 6561
    assert [bool(output["is_final"][0, 0]) for output in start.outputs] == [False] * (len(start.outputs) - 1) + [True]
    reason = FinishReason(start.outputs[-1]["finish_reason"][0, 0].decode())
    assert reason in (FinishReason.EOS, FinishReason.LENGTH)
    assert int(start.outputs[-1]["text_consumed"][0, 0]) == len("Good morning.")


@pytest.mark.parametrize("values", [{"text": "No session."}, {"session_id": "unknown", "text": "x", "is_start": False}, {"gender": "male"}])
def test_llm_bistream_refuses(grpc_url: str, values: dict[str, Any]) -> None:
    with Stream(grpc_url) as stream:
        refused = stream.receive_error(stream.send("llm_bistream", **values))
    assert refused.code in ("INVALID_INPUT", "UNKNOWN_SESSION")


def test_token2wav_renders_all_tokens_at_once(grpc_url: str) -> None:
    tokens = np.arange(10, dtype=np.int32)
    answer = ask(grpc_url, "token2wav", target_speech_tokens=tokens, prompt_spk_embedding=EMBEDDING)
    assert answer.waveform.shape == (tokens.size * SAMPLES_PER_TOKEN,)


def test_token2wav_streams_hops_of_a_session(grpc_url: str) -> None:
    session_id = uuid.uuid4().hex
    tokens = np.arange(30, dtype=np.int32)
    first = ask(grpc_url, "token2wav", session_id=session_id, target_speech_tokens=tokens[:18], prompt_spk_embedding=EMBEDDING)
    last = ask(grpc_url, "token2wav", session_id=session_id, target_speech_tokens=tokens[18:], finalize=True)
    assert first.waveform.size + last.waveform.size == tokens.size * SAMPLES_PER_TOKEN
    assert first.waveform.size > 0


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"target_speech_tokens": np.arange(4, dtype=np.int32)}, "INVALID_INPUT"),
        ({"target_speech_tokens": np.array([6561], np.int32), "prompt_spk_embedding": EMBEDDING}, "INVALID_INPUT"),
        ({"target_speech_tokens": np.arange(4, dtype=np.int32), "session_id": "unknown"}, None),
        ({"target_speech_tokens": np.arange(4, dtype=np.int32), "speaker_id": "nobody"}, "UNKNOWN_SPEAKER"),
        ({"target_speech_tokens": np.arange(4, dtype=np.int32), "prompt_spk_embedding": EMBEDDING[:-1]}, "INVALID_INPUT"),
    ],
)
def test_token2wav_refuses(grpc_url: str, values: dict[str, Any], code: str | None) -> None:
    with Stream(grpc_url) as stream:
        refused = stream.receive_error(stream.send("token2wav", **values))
    assert refused.code == code if code else refused.error is not None


def test_upstream_streaming_request(grpc_url: str, reference_wav: NDArray[np.float32]) -> None:
    with Stream(grpc_url) as stream:
        answer: Answer = stream.receive(stream.send("cosyvoice2", **upstream_inputs(reference_wav, "Good morning.", padding_s=10)))
    assert answer.error is None and answer.finals == 1
    assert answer.last_is_empty  # upstream's client discards audio that arrives with the final flag
    assert all(output["waveform"].ndim == 1 for output in answer.outputs)
    assert answer.waveform.size > 0 and answer.waveform.size % SAMPLES_PER_TOKEN == 0


def test_upstream_streaming_errors_end_the_request(grpc_url: str) -> None:
    answer = ask(grpc_url, "cosyvoice2", target_text="No voice.")
    assert answer.code == "INVALID_INPUT" and answer.finals == 1 and answer.last_is_empty
