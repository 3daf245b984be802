"""A voice that the real server has heard is asked for by the hash of its recording: at both front models, through the gate."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bistream.client.client import BistreamClient
from bistream.client.say_http import request_body, synthesize
from bistream.contract.voices import reference_hash
from bistream.errors import InvalidInputError
from bistream.keeper.server_process import TritonServer
from tests.formats import SAMPLES_PER_TOKEN
from tests.triton.conftest import PATIENCE_S
from tests.triton.gate_process import GateProcess
from tests.triton.requests import ask
from tests.triton.test_sessions import MODEL, Voice, check_audio, check_outputs

TEXT = "Hashed."


@pytest.fixture(scope="module")
def gate(offline_server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GateProcess]:
    with GateProcess(offline_server, tmp_path_factory.mktemp("gate")) as made:
        yield made
        assert offline_server.exit_code() is None and offline_server.models.take_dead() == []
        made.check_end()


@pytest.fixture
def url(gate: GateProcess) -> str:
    return gate.grpc_url


@pytest.fixture
def digest(voice: Voice) -> str:
    return reference_hash(voice["reference_wav"], str(voice["reference_text"]))


def displace(url: str, voice: Voice) -> None:
    """Another voice takes the only place of the cache."""
    assert ask(url, MODEL, target_text="x", **{**voice, "reference_text": uuid.uuid4().hex}).error is None


def test_a_hash_sounds_like_its_recording(url: str, voice: Voice, digest: str) -> None:
    by_recording = ask(url, MODEL, target_text=TEXT, seed=7, speed=1.25, **voice)
    by_hash = ask(url, MODEL, target_text=TEXT, seed=7, speed=1.25, reference_hash=digest)
    check_outputs(by_hash, len(TEXT))
    assert np.array_equal(by_recording.waveform, by_hash.waveform)
    check_audio(ask(url, MODEL, target_text=TEXT, reference_hash=digest, **voice), len(TEXT))


def test_our_client_sends_the_recording_again_by_itself(gate: GateProcess, voice: Voice, digest: str) -> None:
    url = gate.grpc_url
    client = BistreamClient(url, silence_timeout_s=PATIENCE_S)
    recording: dict[str, Any] = {"reference_wav": voice["reference_wav"][0], "reference_text": voice["reference_text"]}
    for is_forgotten in (False, False, True):
        if is_forgotten:
            displace(url, voice)
            assert ask(url, MODEL, target_text=TEXT, reference_hash=digest).code == "UNKNOWN_VOICE"
        with client.start(**recording, text="Ha") as session:
            session.push_text("sh")
            session.end_text("ed.")
            assert [chunk.text_consumed for chunk in session][-1] == len(TEXT)
        check_audio(ask(url, MODEL, target_text=TEXT, reference_hash=digest), len(TEXT))


def test_upstreams_model_takes_hashes_offline(gate: GateProcess, voice: Voice) -> None:
    """Samples and hash as JSON carries them."""
    samples = voice["reference_wav"].round(5)
    recording = [
        {"name": "reference_wav", "shape": list(samples.shape), "datatype": "FP32", "data": samples.astype(float).round(5).tolist()},
        {"name": "reference_text", "shape": [1, 1], "datatype": "BYTES", "data": ["said"]},
    ]
    hashed = {"name": "reference_hash", "shape": [1, 1], "datatype": "BYTES", "data": [reference_hash(samples, "said")]}

    def post(*inputs: dict[str, Any]) -> Any:
        text = {"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "data": [TEXT]}
        body = json.dumps({"inputs": [*inputs, text]}).encode()
        request = urllib.request.Request(f"http://{gate.http_url}/v2/models/cosyvoice2/infer", data=body)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)["outputs"][0]["data"]

    with pytest.raises(urllib.error.HTTPError) as refused:
        post(hashed)
    assert refused.value.code == 404 and "UNKNOWN_VOICE" in json.load(refused.value)["error"]
    assert post(*recording) == post(hashed) == post(*recording, hashed)


def test_manners_over_http(gate: GateProcess, voice: Voice) -> None:
    """A preset as instructed, cross-lingual speech, and voice conversion, each in one answer."""
    recording = voice["reference_wav"].reshape(-1).round(5)
    bodies = [request_body("Hi.", None, None, speaker_id="001", instruct_text="用四川话说"), request_body("Hi.", recording, None)]
    source = {"name": "source_wav", "shape": [1, len(recording)], "datatype": "FP32", "data": recording.astype(float).round(5).tolist()}
    speaker = {"name": "speaker_id", "shape": [1, 1], "datatype": "BYTES", "data": ["001"]}
    bodies.append(json.dumps({"inputs": [source, speaker]}).encode())
    heard = [synthesize(gate.http_url, "cosyvoice2", body, PATIENCE_S) for body in bodies]
    assert all(waveform.size and waveform.size % SAMPLES_PER_TOKEN == 0 for waveform in heard)
    assert heard[2].size == -(-recording.size // 640) * SAMPLES_PER_TOKEN
    with pytest.raises(InvalidInputError, match="target_text is missing"):
        synthesize(gate.http_url, "cosyvoice2", json.dumps({"inputs": [speaker]}).encode(), PATIENCE_S)


def test_our_client_converts_and_instructs(gate: GateProcess, voice: Voice) -> None:
    client = BistreamClient(gate.grpc_url, silence_timeout_s=PATIENCE_S)
    recording = voice["reference_wav"].reshape(-1)
    for number in range(2):
        with client.convert(recording, reference_wav=recording) as session:
            audio = np.concatenate([chunk.waveform for chunk in session])
        assert audio.size == -(-recording.size // 640) * SAMPLES_PER_TOKEN, f"the recording, then its hash: {number}"
    with client.start(reference_wav=recording, instruct_text="Softly.") as session:
        session.end_text(TEXT)
        assert [chunk.text_consumed for chunk in session][-1] == len(TEXT)
