"""Speaks sentences in a form, through a model directory in this process or through a server, and writes what was heard."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soundfile

from bistream.client.audio import read_reference
from bistream.client.client import BistreamClient
from bistream.client.say import paced, split_pieces
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, CancelledError, EngineError, InvalidInputError
from bistream.evaluation.forms import ONE_SHOT, REFERENCE, Form
from bistream.evaluation.sets import Sentence
from bistream.evaluation.sound import longest_pause_s, loudest_joint_db
from bistream.local import LocalPipeline, VoiceChoice
from bistream.types import FloatArray, GenerationOptions

WORDS_PER_SECOND = 10.0  # of a text that is sent to a server in pieces
TIMED = 3  # sentences of a form are spoken one at a time first: times of sessions that share a machine say little


@dataclass(frozen=True)
class Utterance:
    """path: the WAV file; None for a sentence that failed, for the reason ``error``. digest: of its samples. scores: see ``metrics``."""

    path: Path | None
    digest: str
    scores: dict[str, Any]
    error: str = ""


class Speaker(Protocol):
    """sample_rate: of the sound, in Hz."""

    sample_rate: int

    def say(self, sentence: Sentence, kind: str) -> Iterator[FloatArray]:
        """Chunks of float32 [N] as they come. Raises ``BistreamError``."""
        ...

    def close(self) -> None: ...


class LocalSpeaker:
    """A pipeline in this process; texts in pieces come without pauses, which change no sample. Close it."""

    def __init__(self, config: RuntimeConfig, voice: VoiceChoice) -> None:
        """Raises ``BistreamError``."""
        self._pipeline = LocalPipeline(config)
        self._voice = voice
        self.sample_rate = self._pipeline.sample_rate

    def say(self, sentence: Sentence, kind: str) -> Iterator[FloatArray]:
        options, voice = GenerationOptions(seed=sentence.number), self._voice
        if sentence.recording is not None:
            voice = VoiceChoice(read_voice(sentence.recording), sentence.transcript)
        if kind == REFERENCE:
            yield self._pipeline.synthesize(sentence.text, voice, options)
            return
        pieces = [sentence.text] if kind == ONE_SHOT else split_pieces(sentence.text)
        yield from (chunk.waveform for chunk in self._pipeline.stream(pieces, voice, options, is_whole=kind == ONE_SHOT))

    def close(self) -> None:
        self._pipeline.close()


class ServerSpeaker:
    """A running server. voice: inputs of a start."""

    def __init__(self, client: BistreamClient, voice: Mapping[str, Any]) -> None:
        """Raises ``BistreamError`` and ``ConnectionError``."""
        self._client = client
        self._voice = voice
        self.sample_rate = client.sample_rate

    def say(self, sentence: Sentence, kind: str) -> Iterator[FloatArray]:
        inputs = dict(self._voice)
        if sentence.recording is not None:
            inputs = {"reference_wav": read_voice(sentence.recording), "reference_text": sentence.transcript}
        if kind == ONE_SHOT:
            with self._client.start(text=sentence.text, is_end=True, seed=sentence.number, **inputs) as session:
                yield from (chunk.waveform for chunk in session)
            return
        with self._client.start(seed=sentence.number, **inputs) as session, ThreadPoolExecutor(1) as pool:

            def feed() -> None:
                with suppress(CancelledError):  # it is over before its text is, and its end says why
                    for piece in paced(split_pieces(sentence.text), WORDS_PER_SECOND):
                        session.push_text(piece)
                    session.end_text()

            feeding = pool.submit(feed)
            yield from (chunk.waveform for chunk in session)
            feeding.result()

    def close(self) -> None:
        self._client.close()


def read_voice(path: str | Path) -> FloatArray:
    """float32 [N], 16 kHz mono. Raises ``InvalidInputError``."""
    try:
        return read_reference(path)
    except ValueError as error:
        raise InvalidInputError(str(error)) from None


def speak(
    speaker: Speaker,
    form: Form,
    sentences: Sequence[Sentence],
    folder: Path,
    together: int,
    tell: Callable[[], object],
    has_spoken: bool = False,
) -> dict[int, Utterance]:
    """By the sentences' numbers. folder: for FORM/SET/ID.wav. together: sessions at the same time. tell: called after each sentence.
    has_spoken: an interrupted run has spoken in this form. Raises ``EngineError`` where nothing has, and the first sentences all fail."""

    def one(sentence: Sentence, is_timed: bool = False) -> Utterance:
        found = _utterance(speaker, form, sentence, folder, is_timed)
        tell()
        return found

    first = [one(sentence, is_timed=True) for sentence in sentences[:TIMED]]
    if first and not has_spoken and all(each.path is None for each in first):
        raise EngineError(f"Nothing can be spoken in the form {form.name}: {first[0].error}")
    with ThreadPoolExecutor(together) as pool:
        found = [*first, *pool.map(one, sentences[TIMED:])]
    return {sentence.number: utterance for sentence, utterance in zip(sentences, found, strict=True)}


def file_of(folder: Path, form: str, sentence: Sentence) -> Path:
    return folder / form.replace("/", "_") / sentence.set_name / f"{sentence.id}.wav"


def _utterance(speaker: Speaker, form: Form, sentence: Sentence, folder: Path, is_timed: bool) -> Utterance:
    chunks, times = list[FloatArray](), list[float]()
    began = time.monotonic()
    try:
        for waveform in speaker.say(sentence, form.kind):
            chunks.append(waveform)
            times.append(time.monotonic() - began)
    except BistreamError as error:
        return Utterance(None, "", {"is_failed": True}, error.sentence)
    waveform = np.concatenate([*chunks, np.zeros(0, np.float32)])
    if not len(waveform):
        return Utterance(None, "", {"is_failed": True}, "no sound came")
    joints = np.cumsum([len(each) for each in chunks])[:-1].tolist()
    utterance = _kept(waveform, joints, speaker.sample_rate, file_of(folder, form.name, sentence))
    if is_timed:
        timed = {"timed_s": times[-1], "timed_audio_s": utterance.scores["seconds"], "first_audio_s": times[0]}
        utterance.scores.update({name: round(seconds, 3) for name, seconds in timed.items()})
    assert utterance.path is not None
    kept = {"digest": utterance.digest, "scores": utterance.scores}
    utterance.path.with_suffix(".json").write_text(json.dumps(kept), encoding="utf-8")
    return utterance


def kept_utterances(form: Form, sentences: Sequence[Sentence], folder: Path) -> dict[int, Utterance]:
    """Of an interrupted run, by the sentences' numbers: each whose scores lie beside its sound."""
    found = {}
    for sentence in sentences:
        path = file_of(folder, form.name, sentence)
        with suppress(OSError, ValueError):  # the last one may be half written
            kept = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if path.is_file():
                found[sentence.number] = Utterance(path, kept["digest"], kept["scores"])
    return found


def _kept(waveform: FloatArray, joints: Sequence[int], rate: int, path: Path) -> Utterance:
    samples = (np.clip(waveform, -1.0, 1.0) * 32767.0).round().astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, subtype="PCM_16")
    click = loudest_joint_db(waveform, joints, rate)
    scores = {"is_failed": False, "seconds": round(len(samples) / rate, 3), "pause_s": longest_pause_s(waveform, rate)}
    scores |= {} if click is None else {"click_db": round(click, 2)}
    return Utterance(path, hashlib.sha256(samples.tobytes()).hexdigest()[:16], scores)


def read_recordings(form: Form, sentences: Sequence[Sentence], folder: Path) -> dict[int, Utterance]:
    """Of a form that somebody else has spoken; a missing file is a sentence that failed. Raises ``InvalidInputError``."""
    assert form.recordings is not None
    found = {}
    for sentence in sentences:
        source = form.recordings / sentence.set_name / f"{sentence.id}.wav"
        if source.is_file():
            try:
                samples, rate = soundfile.read(source, dtype="float32", always_2d=True)
            except soundfile.LibsndfileError as error:
                raise InvalidInputError(f"{source} could not be read as audio ({error}); export it again.") from None
            found[sentence.number] = _kept(samples.mean(axis=1), (), rate, file_of(folder, form.name, sentence))
        else:
            found[sentence.number] = Utterance(None, "", {"is_failed": True}, f"{source.name} is not there")
    return found


def configured(config: RuntimeConfig, form: Form) -> RuntimeConfig:
    """The settings of all forms, with those of the form. Raises ``ConfigError``."""
    given = RuntimeConfig.from_strings(form.settings)
    return replace(config, **{name: getattr(given, name) for name in form.settings})
