"""The same server with a directory of CosyVoice3: pieces, whole texts, manners, voice conversion, a cancel, upstream's clients, and the
golden utterance before all. It can make 2.5 audio seconds per second: it speaks with two callers, and refuses a third at once."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bistream.errors import BusyError
from bistream.types import FloatArray
from tests.formats import SAMPLES_PER_TOKEN
from tests.triton.conftest import make_repository
from tests.triton.keeper import Keeper
from tests.triton.requests import Stream, ask
from tests.triton.test_sessions import MODEL, Voice, check_audio
from tests.triton.upstream_clients import MODEL3, ask_statistics, stream_each

WORDS = [b"Hello ", b"there, ", b"one ", b"test."]
TEXT = b"".join(WORDS)
PRESET = "001"
CAPACITY = {"admission_load": "0.9", "token2wav.capacity_audio_s_per_s": "2.5", "cosyvoice2_bistream.max_sessions": "6"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory, tiny_cosyvoice3_dir: Path, tiny_model_dir: Path) -> Path:
    """With a table of presets, which is not released for CosyVoice3 but made by upstream's library for both families."""
    made = Path(shutil.copytree(tiny_cosyvoice3_dir, tmp_path_factory.mktemp("model") / "tiny"))
    shutil.copy(tiny_model_dir / "spk2info.pt", made)
    return made


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Keeper]:
    folder = tmp_path_factory.mktemp("cosyvoice3")
    with Keeper(make_repository(folder, model_dir, None, **CAPACITY), "--state-dir", str(folder / "state"), golden=True) as found:
        yield found


def say_in_pieces(stream: Stream, voice: Voice, words: Sequence[bytes] = WORDS) -> FloatArray:
    session_id = uuid.uuid4().hex
    start = stream.send(MODEL, session_id=session_id, target_text=words[0], is_end=False, seed=7, **voice)
    for word in words[1:]:
        stream.receive(stream.send(MODEL, session_id=session_id, target_text=word, is_start=False, is_end=word is words[-1]))
    answer = stream.receive(start)
    check_audio(answer, len(b"".join(words)))
    return answer.waveform


def test_text_in_pieces_is_spoken_and_is_as_long_again(keeper: Keeper, voice: Voice) -> None:
    """The same speech tokens. Where text in pieces pauses, time decides where a hop ends (``hops.policy``), and with it single samples."""
    with Stream(keeper.grpc_url) as stream:
        assert say_in_pieces(stream, voice).size == say_in_pieces(stream, voice).size


def test_a_whole_text_sounds_the_same_again(keeper: Keeper, voice: Voice) -> None:
    with Stream(keeper.grpc_url) as stream:
        once, again = (stream.receive(stream.send(MODEL, target_text=TEXT, seed=7, **voice)) for _ in range(2))
    check_audio(once, len(TEXT))
    np.testing.assert_array_equal(once.waveform, again.waveform)


@pytest.mark.parametrize(
    "manner",
    [
        {"instruct_text": "Speak slowly."},
        {"is_cross_lingual": True},
        {"speaker_id": PRESET},
        {"speaker_id": PRESET, "instruct_text": "Loudly.<|endofprompt|>"},
    ],
    ids=["instructed", "cross-lingual", "preset", "preset, instructed"],
)
def test_text_in_pieces_in_every_manner(keeper: Keeper, voice: Voice, manner: dict[str, Any]) -> None:
    with Stream(keeper.grpc_url) as stream:
        told = manner if "speaker_id" in manner else {**voice, **manner}
        assert say_in_pieces(stream, told, [b"Hi", b"."]).size % SAMPLES_PER_TOKEN == 0


@pytest.mark.parametrize("model", [MODEL, "cosyvoice2"])
def test_a_recording_is_converted(keeper: Keeper, voice: Voice, model: str) -> None:
    source = np.tile(voice["reference_wav"], 3)[:, ::-1].copy()
    answer = ask(keeper.grpc_url, model, source_wav=source, reference_wav=voice["reference_wav"])
    assert answer.error is None and answer.finals == 1 and len(answer.outputs) > 1
    assert answer.waveform.size == source.size // 640 * SAMPLES_PER_TOKEN


def test_upstreams_client_streams_under_its_own_name(keeper: Keeper, voice: Voice) -> None:
    before = ask_statistics(keeper.grpc_url, MODEL3)
    spoken = stream_each(keeper.grpc_url, voice["reference_wav"][0], "A reference.", ["Hi.", "You."], MODEL3)
    assert all(audio.ndim == 1 and audio.size > 0 and np.isfinite(audio).all() for audio in spoken)
    assert ask_statistics(keeper.grpc_url, MODEL3) >= before + len(spoken)  # the keeper's probes count too


def test_a_full_server_speaks_with_its_callers_and_refuses_others(keeper: Keeper, voice: Voice) -> None:
    url, text = keeper.grpc_url, "The first words are spoken. "
    check_audio(ask(url, MODEL, target_text="Hi.", **voice), len("Hi."))  # the front model now knows the capacity
    with Stream(url) as first, Stream(url) as second:
        talks = []
        for stream in (first, second):
            session_id = uuid.uuid4().hex
            start = stream.send(MODEL, session_id=session_id, target_text=text, is_end=False, **voice)
            stream.receive_audio(start)  # a session counts more until then
            talks.append((stream, session_id, start))
        refused = ask(url, MODEL, target_text=text, **voice)
        assert isinstance(refused.error, BusyError) and not refused.outputs
        assert refused.error.retry_after_s is not None and refused.error.retry_after_s > 0
        for stream, session_id, start in talks:
            stream.send(MODEL, session_id=session_id, target_text="Last.", is_start=False, is_end=True)
            check_audio(stream.receive(start), len(text + "Last."))
    check_audio(ask(url, MODEL, target_text="Hi.", **voice), len("Hi."))


def test_the_golden_utterance_was_spoken(keeper: Keeper) -> None:
    assert keeper.said("the golden utterance of a checkpoint that is new here is stored")
