"""Requests are read by the wire contract; any violation is one sentence for the client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bistream.contract.codec import CallInputs
from bistream.contract.fields import CALLED_BISTREAM, COSYVOICE2, COSYVOICE2_BISTREAM, LLM_BISTREAM, SPARK_TTS, TOKEN2WAV, ModelContract
from bistream.errors import InvalidInputError
from bistream.sessions.ports import BistreamRequest
from bistream.text2token.service import LanguageModelStart
from bistream.triton.inputs import TritonInputs, bistream_request, upstream_values, voice_prompt
from tests.unit.triton.fakes import FakeRequest, text


def inputs(contract: ModelContract, **arrays: Any) -> TritonInputs:
    return TritonInputs(FakeRequest(**arrays), contract)


def one(value: Any, dtype: type) -> Any:
    return np.array([[value]], dtype)


def test_absent_inputs_keep_the_defaults() -> None:
    assert bistream_request(inputs(COSYVOICE2_BISTREAM)) == BistreamRequest()


def test_the_secret_of_a_session_is_a_parameter() -> None:
    request = FakeRequest()
    request.given_parameters = {"session_secret": "mine", "other": 3}
    assert bistream_request(TritonInputs(request, COSYVOICE2_BISTREAM)).session_secret == "mine"
    for wrong in ("", "no blanks", "x" * 129, 3, True, 0.5):
        request.given_parameters = {"session_secret": wrong}
        with pytest.raises(InvalidInputError, match="session_secret"):
            bistream_request(TritonInputs(request, COSYVOICE2_BISTREAM))


@pytest.mark.parametrize(
    "arrays",
    [
        {"is_end": one(1, np.int32)},
        {"is_end": np.array([True])},
        {"seed": one(1, np.int32)},
        {"reference_wav": np.zeros(8, np.float32)},
        {"reference_wav": np.zeros((2, 8), np.float32)},
        {"reference_wav": np.zeros((1, 8), np.float64)},
        {"session_id": text("a b")},
        {"session_id": text("")},
        {"session_id": text("x" * 129)},
        {"session_id": text(b"\xff")},
        {"session_id": text("line\n")},
        {"speaker_id": text("../x")},
        {"speaker_id": text("x" * 65)},
        {"reference_text": text(b"\xff")},
        {"instruct_text": text(b"\xff")},
        {"continues": text("a b")},
        {"seed": one(-1, np.int64)},
    ],
)
def test_violations_of_the_contract_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        bistream_request(inputs(COSYVOICE2_BISTREAM, **arrays))
    assert next(iter(arrays)) in refusal.value.sentence


def called(is_offline: bool, **arrays: Any) -> BistreamRequest:
    """What ``cosyvoice2_bistream`` reads of a request to ``cosyvoice2``."""
    return bistream_request(CallInputs(upstream_values(inputs(COSYVOICE2, **arrays), is_offline), CALLED_BISTREAM))


def test_upstreams_request_is_a_whole_session_of_its_own() -> None:
    assert called(True, target_text=text("Hello.")) == BistreamRequest(target_text=b"Hello.", is_offline=True)
    by_hash = called(False, target_text=text("Hello."), reference_hash=text("0" * 64))
    assert by_hash == BistreamRequest(target_text=b"Hello.", reference_hash="0" * 64)
    manner = {"speaker_id": text("anna"), "instruct_text": text("softly"), "is_cross_lingual": one(True, np.bool_)}
    named = called(False, target_text=text("Hello."), **manner)
    assert (named.speaker_id, named.options.instruct_text, named.is_cross_lingual) == ("anna", "softly", True)
    source = called(True, source_wav=np.zeros((1, 5), np.float32))
    assert source.target_text is None and source.source_wav is not None and source.source_wav.shape == (5,)
    with pytest.raises(InvalidInputError, match="target_text"):
        upstream_values(inputs(COSYVOICE2, reference_text=text("said")), is_offline=False)


@pytest.mark.parametrize("transcript", ["", " \n", "said"])
def test_a_blank_transcript_is_none_where_clients_cannot_leave_it_out(transcript: str) -> None:
    given = {"target_text": text("Hello."), "reference_text": text(transcript)}
    assert ("reference_text" in upstream_values(inputs(SPARK_TTS, **given), is_offline=False)) == (transcript == "said")
    assert "reference_text" in upstream_values(inputs(COSYVOICE2, **given), is_offline=False)  # which refuses a blank one


def test_a_language_model_start_needs_its_session() -> None:
    start = inputs(LLM_BISTREAM, session_id=text("s"), prompt_speech_tokens=np.arange(3, dtype=np.int32)).read(LanguageModelStart)
    assert (start.session_id, start.text, start.is_end, start.prompt_text) == ("s", b"", True, "")
    assert start.prompt_speech_tokens.tolist() == [0, 1, 2]
    with pytest.raises(InvalidInputError, match="session_id"):
        inputs(LLM_BISTREAM, text=text("Hello.")).read(LanguageModelStart)


def test_a_voice_prompt_without_a_recording_is_its_embedding() -> None:
    embedding = np.ones(192, np.float32)
    tokens = np.arange(2, dtype=np.int32)
    assert voice_prompt(inputs(TOKEN2WAV), 80) is None
    bare = voice_prompt(inputs(TOKEN2WAV, prompt_spk_embedding=embedding), 96)
    assert bare is not None and bare.speech_feat.shape == (0, 96) and bare.speech_tokens.shape == (0,)
    whole = voice_prompt(
        inputs(TOKEN2WAV, prompt_spk_embedding=embedding, prompt_speech_tokens=tokens, prompt_speech_feat=np.zeros((4, 80), np.float32)),
        80,
    )
    assert whole is not None and len(whole.speech_feat) == 4
