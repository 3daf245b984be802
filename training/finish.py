"""The last stage: a model directory, the voices' recordings, and the prompts of these recordings as named speakers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor

from bistream.family import COSYVOICE2
from bistream.rates import REFERENCE_SAMPLE_RATE, SAMPLE_RATE
from bistream.resample import resample
from bistream.types import FloatArray
from bistream.voice.build import build_voice_prompt
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from training import packages, teachers
from training.adopt import write_record
from training.export import export
from training.stages import Work
from training.voices import DEFAULT_VOICE, HELD_OUT_VOICE, VOICES, Voice

PROMPT_TEXT = "The street was quiet and empty."  # two seconds: a longer prompt delays the first sound
DEFAULT_SPEAKER = "001"  # the key that upstream's Triton runtime looks up


def teachers_root(work: Work) -> Path:
    """The teachers, as ``prepare`` unpacked them, or else from the archive, which lacks the voice that is never trained on."""
    unpacked = work.root / "work" / "unpacked"
    if not unpacked.exists():
        packages.extract(work.archive, unpacked)
    return unpacked


def recording(work: Work, voice: Voice, text: str) -> FloatArray:
    """A teacher's waveform, 24 kHz. Raises ``ValueError`` when it cannot speak."""
    (utterance,) = teachers.speak(teachers_root(work), voice, [text])
    if utterance is None:
        raise ValueError(f"The teacher {voice.teacher} did not speak; run the stage prepare again.")
    samples: FloatArray = utterance.waveform.astype(np.float32) / 32768.0
    return samples


def export_voice(work: Work) -> bool:
    """``model`` and ``recordings``; needs the teachers and all five networks."""
    directory, recordings = work.root / "model", work.root / "recordings"
    steps = export(work.folders, work.carried, work.sizes, directory)
    recordings.mkdir(parents=True, exist_ok=True)
    (recordings / "transcript.txt").write_text(f"{PROMPT_TEXT}\n", encoding="utf-8")
    tokenizer, encoder = SpeechTokenizer.from_model_dir(directory, "cpu", 1), SpeakerEncoder.from_model_dir(directory, "cpu", 1)
    speakers: dict[str, dict[str, str | Tensor]] = {}
    trained = [voice for voice in VOICES if not work.voices or voice.name in work.voices]
    write_record(directory, work.sizes, steps, tuple(voice.name for voice in trained))
    for voice in (*trained, HELD_OUT_VOICE):
        heard = resample(recording(work, voice, PROMPT_TEXT), SAMPLE_RATE, REFERENCE_SAMPLE_RATE)
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
