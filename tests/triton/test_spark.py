"""The same server with a directory of Spark-TTS: whole texts, pieces, registered voices, voices of labels, a conversion, a cancel,
upstream's clients, and what it refuses; the golden utterance before all. Offline: test_entrypoint.py."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from benchmarks import dataset
from bistream.commands.main import main
from bistream.errors import InvalidInputError
from tests.triton.conftest import make_repository
from tests.triton.keeper import Keeper
from tests.triton.requests import Stream, ask
from tests.triton.test_sessions import MODEL, Voice
from tests.triton.upstream_clients import SPARK_MODEL, ask_statistics, cross_faded, stream_chunks
from tests.unit.benchmarks.sets import write_jsonl

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Hi. You too?"
FIRST = "Hello there, nice to see you here again today."  # long enough to be spoken by itself
TRANSCRIPT = "A reference."
SAMPLES_PER_TOKEN = 320
TOLERANCE = 5e-5  # of hops that are cut elsewhere
LABELS: dict[str, Any] = {"gender": "female", "pitch": "high", "seed": 7}
LABEL_OPTIONS = ["--gender", "female", "--pitch", "high", "--seed", "7"]


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, tiny_spark_dir: Path) -> Iterator[Keeper]:
    folder = tmp_path_factory.mktemp("spark")
    transcript = (ROOT / "assets/reference.txt").read_text().strip()
    directories = ["--model-dir", str(tiny_spark_dir), "--voices-dir", str(folder / "voices")]
    words = ["--reference-audio", str(ROOT / "assets/reference.wav"), "--reference-text", transcript]
    assert main(["voices", "add", "anna", *directories, *words]) == 0
    assert main(["voices", "add", "bella", *directories, *LABEL_OPTIONS]) == 0
    repository = make_repository(folder, tiny_spark_dir, None, voices_dir=str(folder / "voices"))
    with Keeper(repository, "--state-dir", str(folder / "state"), golden=True) as found:
        yield found


def test_a_text_is_the_same_speech_however_it_comes(keeper: Keeper, voice: Voice) -> None:
    session_id = uuid.uuid4().hex
    with Stream(keeper.grpc_url) as stream:
        whole = stream.receive(stream.send(MODEL, target_text=TEXT, seed=7, **voice))
        start = stream.send(MODEL, session_id=session_id, target_text=TEXT[:2], is_end=False, seed=7, **voice)
        for piece, is_end in ((TEXT[2:6], False), (TEXT[6:], True)):
            stream.receive(stream.send(MODEL, session_id=session_id, target_text=piece, is_start=False, is_end=is_end))
        pieces = stream.receive(start)
    for answer in (whole, pieces):
        assert answer.error is None and answer.finals == 1 and answer.waveform.size % SAMPLES_PER_TOKEN == 0
    assert pieces.waveform.size == whole.waveform.size
    first = 15 * SAMPLES_PER_TOKEN  # behind them a sentence may have been spoken to its end before the next one was known
    np.testing.assert_allclose(pieces.waveform[:first], whole.waveform[:first], rtol=0, atol=TOLERANCE)


def test_a_sentence_is_heard_to_its_end_before_the_next_one_is_written(keeper: Keeper, voice: Voice) -> None:
    session_id, first = uuid.uuid4().hex, len(FIRST)
    text = f"{FIRST} How are you?"
    with Stream(keeper.grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text=text[: first + 8], is_end=False, **voice)
        while not start.outputs or start.outputs[-1]["text_consumed"].item() < first:
            stream.receive_audio(start)
        stream.receive(stream.send(MODEL, session_id=session_id, target_text=text[first + 8 :], is_start=False))
        assert stream.receive(start).error is None


def test_a_registered_voice_and_upstreams_contract(keeper: Keeper) -> None:
    assert ask(keeper.grpc_url, MODEL, target_text=TEXT, speaker_id="anna").waveform.size > 0
    assert ask(keeper.grpc_url, "cosyvoice2", target_text=TEXT, speaker_id="anna").waveform.size > 0


def test_a_data_set_is_spoken_and_counted_at_its_rate(keeper: Keeper, tmp_path: Path) -> None:
    """Stage 5 of run.sh, in two of its modes."""
    source = write_jsonl(tmp_path, ["Hi.", "You."])
    given = ["--server", keeper.grpc_url, "--dataset", str(source), "--warm-up", "0", "--processes", "1", "--wavs"]
    for mode in ("streaming", "bistream"):
        assert dataset.main([*given, "--mode", mode, "--num-tasks", "2", "--out", str(tmp_path / mode)]) == 0
        for run in json.loads((tmp_path / mode / "result.json").read_text())["metrics"]["runs"]:
            infos = [soundfile.info(tmp_path / mode / f"tasks-{run['num_tasks']}" / f"{name}.wav") for name in "ab"]
            assert {info.samplerate for info in infos} == {16_000}
            assert run["audio_s"] == pytest.approx(sum(info.duration for info in infos), abs=2e-3)


def test_a_voice_of_labels(keeper: Keeper) -> None:
    """The same for a text in pieces, the first of them empty, and for the registered voice; upstream's contract has no seed."""
    session_id = uuid.uuid4().hex
    with Stream(keeper.grpc_url) as stream:
        whole = stream.receive(stream.send(MODEL, target_text=TEXT, **LABELS))
        start = stream.send(MODEL, session_id=session_id, target_text="", is_end=False, **LABELS)
        stream.receive(stream.send(MODEL, session_id=session_id, target_text=TEXT, is_start=False))
        pieces = stream.receive(start)
        registered = stream.receive(stream.send(MODEL, target_text=TEXT, speaker_id="bella", seed=7))
        other = stream.receive(stream.send(MODEL, target_text=TEXT, **{**LABELS, "gender": "male"}))
    assert whole.error is None and whole.waveform.size > 0
    for answer in (pieces, registered):
        assert answer.error is None
        np.testing.assert_allclose(answer.waveform, whole.waveform, rtol=0, atol=TOLERANCE)
    assert other.error is None and not np.array_equal(other.waveform, whole.waveform)
    assert ask(keeper.grpc_url, "cosyvoice2", target_text=TEXT, gender="male", speaking_rate="low").waveform.size > 0


def test_voices_are_made_side_by_side(keeper: Keeper) -> None:
    with Stream(keeper.grpc_url) as stream:
        sent = [stream.send(MODEL, target_text="Hi.", gender="male", seed=seed) for seed in (100, 101, 102)]
        answers = [stream.receive(one) for one in sent]
    assert all(answer.error is None and answer.waveform.size > 0 for answer in answers)
    assert len({answer.waveform.tobytes() for answer in answers}) == len(answers)


def test_the_client_speaks_in_a_voice_of_labels(keeper: Keeper, tmp_path: Path) -> None:
    output = tmp_path / "out.wav"
    assert main(["say", TEXT, *LABEL_OPTIONS, "--server", keeper.grpc_url, "--output", str(output)]) == 0
    assert soundfile.info(output).frames % SAMPLES_PER_TOKEN == 0 and soundfile.info(output).frames > 0


@pytest.mark.parametrize("transcript", [TRANSCRIPT, ""])
def test_upstreams_client_plays_the_audio_of_the_stream(keeper: Keeper, voice: Voice, transcript: str) -> None:
    """Through the gate and without it; an empty transcript is none."""
    wav, texts = voice["reference_wav"][0], [TEXT, "Hi."]
    asked = ask_statistics(keeper.grpc_url, SPARK_MODEL)
    gate, direct = (stream_chunks(url, wav, transcript, texts, SPARK_MODEL) for url in (keeper.grpc_url, keeper.triton_url))
    assert ask_statistics(keeper.grpc_url, SPARK_MODEL) >= asked + 2 * len(texts)  # the keeper's probes count too
    said = {"reference_text": transcript} if transcript else {}
    for text, *heard in zip(texts, gate, direct, strict=True):
        expected = ask(keeper.grpc_url, "cosyvoice2", target_text=text, reference_wav=voice["reference_wav"], **said).waveform
        for chunks in heard:
            np.testing.assert_allclose(cross_faded(chunks), expected, rtol=0, atol=TOLERANCE)
    assert len(gate[0]) > 1, "nothing was joined"


def test_a_recording_is_converted(keeper: Keeper, voice: Voice) -> None:
    source = voice["reference_wav"]
    answer = ask(keeper.grpc_url, MODEL, source_wav=source, **voice)
    assert answer.error is None and abs(answer.waveform.size - source.size) < 2 * SAMPLES_PER_TOKEN


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"speed": 1.5}, "no speed"),
        ({"instruct_text": "Speak slowly."}, "instruct"),
        ({"gender": "male"}, "both reference_wav and gender"),
        ({"gender": "loud"}, "gender must be one of female, male"),
    ],
)
def test_what_it_has_not_is_refused(keeper: Keeper, voice: Voice, given: dict[str, object], sentence: str) -> None:
    answer = ask(keeper.grpc_url, MODEL, target_text=TEXT, **voice, **given)
    assert isinstance(answer.error, InvalidInputError) and sentence in answer.error.sentence
