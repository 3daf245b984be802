"""Makes voices for ``bistream voices add``: of a recording, of labels, or of upstream's ``spk2info.pt``. Loads networks and torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bistream.checkpoints.model_card import read_model_card
from bistream.checkpoints.reader import read_config
from bistream.client import audio
from bistream.commands.recording_advice import advice
from bistream.commands.waiting import Waiting
from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.contract.checks import check_seed, check_speaker_id
from bistream.contract.refusals import takes_no_labels
from bistream.errors import InvalidInputError
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.one_table.prompts import Labels
from bistream.text2token.service import SpeechTokenService
from bistream.token2mel.checks import check_prompt
from bistream.types import FloatArray, VoicePrompt
from bistream.voice.build import join_voice_prompt, voice_of_numbers
from bistream.voice.conditioning import condition_reference, speech_of
from bistream.voice.factory import load_speakers, load_tokenizer
from bistream.voice.reference_audio import check_reference_audio
from bistream.voice.registry import VoiceRegistry
from bistream.voice.spk2info import read_spk2info


@dataclass(frozen=True)
class Spoken:
    """A recording with its transcript. is_raw: taken as it comes."""

    path: Path
    transcript: str
    is_raw: bool = False


def add_recording(model_dir: Path, registry: VoiceRegistry, speaker_id: str, recording: Spoken, tell: Callable[[str], None]) -> None:
    """Register the voice of a recording. tell: what could be better about it, sentences. Raises ``BistreamError``."""
    check_speaker_id(speaker_id)
    voice = analyse(model_dir, recording, tell)
    checkpoint = read_config(model_dir)
    if not checkpoint.family.has_codec:
        check_prompt(voice, checkpoint.flow)
    registry.save(speaker_id, voice)


def add_made(model_dir: Path, registry: VoiceRegistry, speaker_id: str, labels: Labels, seed: int) -> None:
    """Register the voice that the language model makes of labels. Raises ``BistreamError``."""
    check_speaker_id(speaker_id)
    check_seed(seed)
    if not read_model_card(model_dir).takes_labels:
        raise takes_no_labels()
    with Waiting("a voice of labels"):
        language_model = SpeechTokenService(RuntimeConfig(model_dir=str(model_dir), max_sessions=1), run_timer=False)
        try:
            made = language_model.voices.make(labels, seed)
        finally:
            language_model.close()
    registry.save(speaker_id, voice_of_numbers(np.array(made.numbers, np.int32)))


def analyse(model_dir: Path, recording: Spoken, tell: Callable[[str], None]) -> VoicePrompt:
    """The voice of a recording. Raises ``BistreamError``."""
    transcript = recording.transcript.strip()
    if not transcript:
        raise InvalidInputError("The transcript is empty; give the words of the recording with --reference-text.")
    config = RuntimeConfig(condition_recordings=not recording.is_raw)
    waveform = check_reference_audio(read_recording(recording.path), None, config)
    for sentence in advice(waveform if recording.is_raw else speech_of(waveform, config), transcript):
        tell(sentence)
    waveform = condition_reference(waveform, config)
    with Waiting("1 of 2: speech tokens") as waiting:
        networks = RuntimeConfig(model_dir=str(model_dir))
        (tokens,) = load_tokenizer(networks).tokens_of([waveform])
        waiting.goes_on("2 of 2: speaker")
        (speaker,) = load_speakers(networks).features_of([waveform])
    return join_voice_prompt(transcript, speaker.mel, tokens, speaker.embedding)


def read_recording(path: Path) -> FloatArray:
    """An audio file of at least 16 kHz as float32 [N] at 16 kHz, channels averaged. Raises ``InvalidInputError``."""
    try:
        recording = audio.read_recording(path)
    except ValueError as error:
        raise InvalidInputError(str(error)) from None
    if recording.source_rate < REFERENCE_SAMPLE_RATE:
        raise InvalidInputError(
            f"{path} has {recording.source_rate} samples per second, as over a telephone; record at {REFERENCE_SAMPLE_RATE} or more."
        )
    return recording.samples


def add_speakers(model_dir: Path, registry: VoiceRegistry, path: Path, renamed: dict[str, str]) -> list[str]:
    """Register every speaker of a ``spk2info.pt``. Returns the ids. Raises ``BistreamError``."""
    voices, flow = read_spk2info(path, TextTokenizer.from_model_dir(model_dir).decode), read_config(model_dir).flow
    for name in renamed:
        if name not in voices:
            raise InvalidInputError(f"{path.name} has no speaker {name!r}; it has {', '.join(map(repr, voices))}.")
    for name, voice in voices.items():
        try:
            check_prompt(voice, flow)
        except InvalidInputError as error:
            raise InvalidInputError(f"Speaker {name!r} belongs to another model; import it with that one. ({error})") from error
        try:
            registry.save(renamed.get(name, name), voice)
        except InvalidInputError as error:
            raise InvalidInputError(f"Speaker {name!r} cannot keep its name; give it another with --rename {name}=ID. ({error})") from error
    return [renamed.get(name, name) for name in voices]
