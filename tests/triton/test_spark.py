"""The same server with a directory of Spark-TTS: whole texts, pieces, a registered voice, a conversion, a cancel, upstream's clients, and
what it refuses; the golden utterance before all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bistream.commands.main import main
from bistream.errors import CancelledError, InvalidInputError
from tests.triton.conftest import make_repository
from tests.triton.keeper import Keeper
from tests.triton.requests import Stream, ask
from tests.triton.test_sessions import MODEL, Voice
from tests.triton.upstream_clients import SPARK_MODEL, ask_over_http, ask_statistics, cross_faded, infer_offline, stream_chunks

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Hello there. How are you?"
TRANSCRIPT = "A reference."
SAMPLES_PER_TOKEN = 320
TOLERANCE = 5e-5  # of hops that are cut elsewhere


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory, tiny_spark_dir: Path) -> Iterator[Keeper]:
    with Keeper(make_repository(tmp_path_factory.mktemp("offline"), tiny_spark_dir, None, decoupled_mode="False")) as found:
        yield found


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, tiny_spark_dir: Path) -> Iterator[Keeper]:
    folder = tmp_path_factory.mktemp("spark")
    transcript = (ROOT / "assets/reference.txt").read_text().strip()
    words = ["--reference-audio", str(ROOT / "assets/reference.wav"), "--reference-text", transcript]
    assert main(["voices", "add", "anna", "--model-dir", str(tiny_spark_dir), "--voices-dir", str(folder / "voices"), *words]) == 0
    repository = make_repository(folder, tiny_spark_dir, None, voices_dir=str(folder / "voices"))
    with Keeper(repository, "--state-dir", str(folder / "state"), golden=True) as found:
        yield found


def test_a_text_is_the_same_speech_however_it_comes(keeper: Keeper, voice: Voice) -> None:
    session_id = uuid.uuid4().hex
    with Stream(keeper.grpc_url) as stream:
        whole = stream.receive(stream.send(MODEL, target_text=TEXT, seed=7, **voice))
        start = stream.send(MODEL, session_id=session_id, target_text=TEXT[:7], is_end=False, seed=7, **voice)
        for piece, is_end in ((TEXT[7:14], False), (TEXT[14:], True)):
            stream.receive(stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=is_end))
        pieces = stream.receive(start)
    for answer in (whole, pieces):
        assert answer.error is None and answer.finals == 1 and answer.waveform.size % SAMPLES_PER_TOKEN == 0
    np.testing.assert_allclose(pieces.waveform, whole.waveform, rtol=0, atol=TOLERANCE)


def test_a_registered_voice_and_upstreams_contract(keeper: Keeper) -> None:
    assert ask(keeper.grpc_url, MODEL, target_text=TEXT, speaker_id="anna").waveform.size > 0
    assert ask(keeper.grpc_url, "cosyvoice2", target_text=TEXT, speaker_id="anna").waveform.size > 0


@pytest.mark.parametrize("transcript", [TRANSCRIPT, ""])
def test_upstreams_client_plays_the_audio_of_the_stream(keeper: Keeper, voice: Voice, transcript: str) -> None:
    """Through the gate and without it; an empty transcript is none."""
    wav, texts = voice["reference_wav"][0], [TEXT * 3, "Hi."]
    asked = ask_statistics(keeper.grpc_url, SPARK_MODEL)
    gate, direct = (stream_chunks(url, wav, transcript, texts, SPARK_MODEL) for url in (keeper.grpc_url, keeper.triton_url))
    assert ask_statistics(keeper.grpc_url, SPARK_MODEL) >= asked + 2 * len(texts)  # the keeper's probes count too
    said = {"reference_text": transcript} if transcript else {}
    for text, *heard in zip(texts, gate, direct, strict=True):
        expected = ask(keeper.grpc_url, "cosyvoice2", target_text=text, reference_wav=voice["reference_wav"], **said).waveform
        for chunks in heard:
            np.testing.assert_allclose(cross_faded(chunks), expected, rtol=0, atol=TOLERANCE)
    assert len(gate[0]) > 1, "nothing was joined"


def test_upstreams_clients_work_offline(offline: Keeper, voice: Voice) -> None:
    wav = voice["reference_wav"][0]
    over_grpc = infer_offline(offline.grpc_url, wav, TRANSCRIPT, TEXT, SPARK_MODEL)
    over_http = ask_over_http(offline.http_url, wav, TRANSCRIPT, TEXT, SPARK_MODEL)
    assert over_grpc.size > 0 and over_grpc.size % SAMPLES_PER_TOKEN == 0
    np.testing.assert_array_equal(over_grpc, over_http)


def test_a_recording_is_converted(keeper: Keeper, voice: Voice) -> None:
    source = voice["reference_wav"]
    answer = ask(keeper.grpc_url, MODEL, source_wav=source, **voice)
    assert answer.error is None and abs(answer.waveform.size - source.size) < 2 * SAMPLES_PER_TOKEN


def test_a_session_is_cancelled(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        session_id = uuid.uuid4().hex
        start = stream.send(MODEL, session_id=session_id, target_text=TEXT * 8, is_end=False, **voice)
        stream.receive_audio(start)
        stream.send(MODEL, session_id=session_id, is_cancel=True)
        assert isinstance(stream.receive(start).error, CancelledError)


@pytest.mark.parametrize(("given", "sentence"), [({"speed": 1.5}, "no speed"), ({"instruct_text": "Speak slowly."}, "instruct")])
def test_what_it_has_not_is_refused(keeper: Keeper, voice: Voice, given: dict[str, object], sentence: str) -> None:
    answer = ask(keeper.grpc_url, MODEL, target_text=TEXT, **voice, **given)
    assert isinstance(answer.error, InvalidInputError) and sentence in answer.error.sentence
