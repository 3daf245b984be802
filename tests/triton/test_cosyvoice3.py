"""The same server with a directory of CosyVoice3: pieces, whole texts, instructions, a cancel, and the golden utterance before all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton

from bistream.errors import CancelledError
from bistream.types import FloatArray
from scripts.make_checkpoint import make_checkpoint
from tests.triton.conftest import make_repository
from tests.triton.keeper import Keeper
from tests.triton.requests import Stream
from tests.triton.test_sessions import MODEL, Voice, check_audio

WORDS = [b"Hello ", b"there, ", b"this is ", b"one more ", b"test."]
TEXT = b"".join(WORDS)


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    folder = tmp_path_factory.mktemp("cosyvoice3")
    make_checkpoint(folder / "tiny", "tiny", seed=0, family="cosyvoice3")
    with Keeper(make_repository(folder, folder / "tiny"), "--state-dir", str(folder / "state"), golden=True) as found:
        yield found


def say_in_pieces(stream: Stream, voice: Voice) -> FloatArray:
    session_id = uuid.uuid4().hex
    start = stream.send(MODEL, session_id=session_id, target_text=WORDS[0], is_end=False, seed=7, **voice)
    for word in WORDS[1:]:
        stream.receive(stream.send(MODEL, session_id=session_id, target_text=word, is_start=False, is_end=word is WORDS[-1]))
    answer = stream.receive(start)
    check_audio(answer, len(TEXT))
    return answer.waveform


def test_text_in_pieces_is_spoken_and_is_as_long_again(keeper: Keeper, voice: Voice) -> None:
    """The same speech tokens. Where text in pieces pauses, time decides where a hop ends (``hop_policy``), and with it single samples."""
    with Stream(keeper.grpc_url) as stream:
        assert say_in_pieces(stream, voice).size == say_in_pieces(stream, voice).size


def test_a_whole_text_sounds_the_same_again(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        once, again = (stream.receive(stream.send(MODEL, target_text=TEXT, seed=7, **voice)) for _ in range(2))
    check_audio(once, len(TEXT))
    np.testing.assert_array_equal(once.waveform, again.waveform)


def test_a_whole_text_with_an_instruction_and_without_a_transcript(keeper: Keeper, voice: Voice) -> None:
    foreign = {name: value for name, value in voice.items() if name != "reference_text"}
    with Stream(keeper.grpc_url) as stream:
        check_audio(stream.receive(stream.send(MODEL, target_text=TEXT, instruct_text="Speak slowly.", **voice)), len(TEXT))
        check_audio(stream.receive(stream.send(MODEL, target_text=TEXT, is_cross_lingual=True, **foreign)), len(TEXT))


def test_a_session_is_cancelled(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        session_id = uuid.uuid4().hex
        start = stream.send(MODEL, session_id=session_id, target_text=TEXT * 8, is_end=False, **voice)
        stream.receive_audio(start)
        stream.send(MODEL, session_id=session_id, is_cancel=True)
        assert isinstance(stream.receive(start).error, CancelledError)


def test_every_model_says_its_family(keeper: Keeper) -> None:
    with triton.InferenceServerClient(keeper.grpc_url) as client:
        config = client.get_model_config(MODEL, as_json=True)
    assert config["config"]["parameters"]["model_family"]["string_value"] == "cosyvoice3"


def test_the_golden_utterance_was_spoken(keeper: Keeper) -> None:
    assert keeper.said("the golden utterance of a checkpoint that is new here is stored")
