"""The last stage: a model directory, the voices' recordings, and the prompts of these recordings as named speakers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor

from bistream.audio.resample import resample
from bistream.checkpoints.model_card import MODEL_CARD_FILE
from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.cosyvoice2 import AUDIO_FORMAT, COSYVOICE2
from bistream.types import FloatArray
from bistream.voice.build import build_voice_prompt
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from training import packages, teachers
from training.export import export
from training.language_model_data import LONGEST_UTTERANCE_S
from training.sizes import Sizes, size_name
from training.stages import Work
from training.voices import DEFAULT_VOICE, HELD_OUT_VOICE, VOICES, Voice, voice_named

PROMPT_TEXT = "The street was quiet and empty."  # two seconds: a longer prompt delays the first sound
# The demo's recording. A block of 15 speech tokens takes 5 text tokens along, and those that its transcript lacks are the first words': the
# more text tokens it has for its length, the earlier they are heard. This one has 14, and 45 of speech (the text above: 10, and 47).
REFERENCE_TEXT = "The green ivy is also huge."
DEFAULT_SPEAKER = "001"  # the key that upstream's Triton runtime looks up
TITLE = "a demonstration, trained in training/ on synthetic speech; no product voice"
UNKNOWN_MARKS = '"()[]{}'  # training/texts.py has none
_AUDIBLE = 0.003  # root mean square of 5 ms, 27 dB below that of an utterance
_WINDOW = REFERENCE_SAMPLE_RATE // 200
_SAMPLES_PER_TOKEN = REFERENCE_SAMPLE_RATE // AUDIO_FORMAT.tokens_per_second


def write_record(directory: Path, sizes: Sizes, steps: dict[str, int], voices: tuple[str, ...]) -> None:
    """The model card: the corpus is English and has no instructions. voices: names of those that were trained on."""
    card = {
        "unknown_marks": UNKNOWN_MARKS,
        "title": TITLE,
        "languages": ["en"],
        "can_be_instructed": False,
        "longest_utterance_s": LONGEST_UTTERANCE_S,
    }
    text = json.dumps({"size": size_name(sizes), "steps": steps, "voices": list(voices), **card}, indent=1)
    (directory / MODEL_CARD_FILE).write_text(f"{text}\n", encoding="utf-8")


def teachers_root(work: Work) -> Path:
    """The teachers, as ``prepare`` unpacked them, or else from the archive, which lacks the voice that is never trained on."""
    unpacked = work.root / "work" / "unpacked"
    if not unpacked.exists():
        packages.extract(work.archive, unpacked)
    return unpacked


def heard_of(work: Work, voice: Voice, text: str) -> FloatArray:
    """A teacher's waveform, 16 kHz. Raises ``ValueError`` when it cannot speak."""
    (utterance,) = teachers.speak(teachers_root(work), voice, [text])
    if utterance is None:
        raise ValueError(f"The teacher {voice.teacher} did not speak; run the stage prepare again.")
    samples: FloatArray = utterance.waveform.astype(np.float32) / 32768.0
    return resample(samples, AUDIO_FORMAT.sample_rate, REFERENCE_SAMPLE_RATE)


def without_silence(waveform: FloatArray) -> FloatArray:
    """The speech in it, with as much of what lies around it as makes whole speech tokens. waveform: [N], 16 kHz, silent at both ends."""
    windows = waveform[: len(waveform) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    audible = np.flatnonzero(np.sqrt((windows**2).mean(1)) > _AUDIBLE)
    begin, end = int(audible[0]) * _WINDOW, (int(audible[-1]) + 1) * _WINDOW
    samples = -(-(end - begin) // _SAMPLES_PER_TOKEN) * _SAMPLES_PER_TOKEN
    begin = max(0, begin - (samples - (end - begin)) // 2)
    return waveform[begin : begin + samples]


def export_voice(work: Work) -> bool:
    """``model``, ``recordings`` and the demo's ``reference.wav``; needs the teachers and all five networks."""
    directory, recordings = work.root / "model", work.root / "recordings"
    steps = export(work.checkpoints, work.carried, work.sizes, directory)
    recordings.mkdir(parents=True, exist_ok=True)
    (recordings / "transcript.txt").write_text(f"{PROMPT_TEXT}\n", encoding="utf-8")
    (work.root / "reference.txt").write_text(f"{REFERENCE_TEXT}\n", encoding="utf-8")
    reference = without_silence(heard_of(work, voice_named(DEFAULT_VOICE), REFERENCE_TEXT))
    soundfile.write(work.root / "reference.wav", reference, REFERENCE_SAMPLE_RATE, subtype="PCM_16")
    config = RuntimeConfig(model_dir=str(directory), device="cpu", num_threads=1)
    tokenizer, encoder = SpeechTokenizer.from_config(config), SpeakerEncoder.from_config(config)
    speakers: dict[str, dict[str, str | Tensor]] = {}
    trained = [voice for voice in VOICES if not work.voices or voice.name in work.voices]
    write_record(directory, work.sizes, steps, tuple(voice.name for voice in trained))
    for voice in (*trained, HELD_OUT_VOICE):
        heard = heard_of(work, voice, PROMPT_TEXT)
        soundfile.write(recordings / f"{voice.name}.wav", heard, REFERENCE_SAMPLE_RATE, subtype="PCM_16")
        if voice is HELD_OUT_VOICE:
            continue
        prompt = build_voice_prompt(heard, PROMPT_TEXT, tokenizer.tokens(heard), encoder.embedding(heard), COSYVOICE2.mel_high_hz)
        speakers[voice.name] = {
            "prompt_text": PROMPT_TEXT,
            "speech_token": torch.from_numpy(np.array(prompt.speech_tokens))[None],
            "speech_feat": torch.from_numpy(np.array(prompt.speech_feat)).half()[None],
            "embedding": torch.from_numpy(np.array(prompt.speaker_embedding))[None],
        }
    speakers[DEFAULT_SPEAKER] = speakers[DEFAULT_VOICE if DEFAULT_VOICE in speakers else trained[0].name]
    torch.save(speakers, directory / "spk2info.pt")
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    print(f"{directory}: {size / 1e6:.1f} MB, steps {steps}, speakers {', '.join(sorted(speakers))}")
    return True
