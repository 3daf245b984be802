"""Builds a voice: recording, transcript, speech tokens and speaker embedding in, ``VoicePrompt`` out."""

from __future__ import annotations

import numpy as np

from bistream.audio.resample import resample
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import InvalidInputError
from bistream.families.bicodec_tokens import NUM_GLOBAL
from bistream.types import FloatArray, IntArray, VoicePrompt
from bistream.voice.features import MEL_SAMPLE_RATE, mel_24k

NO_LABELS = np.zeros(0, np.int32)
MEL_FRAMES_PER_TOKEN = 2  # of ``mel_24k`` and the speech tokenizers


def prompt_mel(reference_wav: FloatArray, mel_high_hz: float) -> FloatArray:
    """float32 [N], 16 kHz -> the flow's mel float32 [T, 80]. mel_high_hz: of the family.

    Needs no network, so it can be made while tokens and embedding are.
    """
    return mel_24k(resample(reference_wav, REFERENCE_SAMPLE_RATE, MEL_SAMPLE_RATE), mel_high_hz)


def build_voice_prompt(
    reference_wav: FloatArray, transcript: str, speech_tokens: IntArray, speaker_embedding: FloatArray, mel_high_hz: float
) -> VoicePrompt:
    """reference_wav float32 [N], 16 kHz; mel_high_hz as in ``prompt_mel``; the others as in ``join_voice_prompt``."""
    return join_voice_prompt(transcript, prompt_mel(reference_wav, mel_high_hz), speech_tokens, speaker_embedding)


def join_voice_prompt(transcript: str, mel: FloatArray, speech_tokens: IntArray, speaker_embedding: FloatArray) -> VoicePrompt:
    """mel float32 [T, 80] as of ``prompt_mel``; speech_tokens int32 [P]; speaker_embedding float32 [E].

    Mel and tokens are cut to the same duration: n = min(mel frames // 2, P) tokens, 2 n frames (as in upstream's zero-shot mode). An empty
    mel is that of a family without one.
    """
    if not mel.size:
        return make_voice_prompt(transcript, speech_tokens, mel, speaker_embedding)
    tokens = min(mel.shape[0] // MEL_FRAMES_PER_TOKEN, speech_tokens.shape[0])
    return make_voice_prompt(transcript, speech_tokens[:tokens], mel[: tokens * MEL_FRAMES_PER_TOKEN], speaker_embedding)


def voice_of_numbers(numbers: IntArray) -> VoicePrompt:
    """Of a voice that a language model made: int32, its global tokens, then its labels (``one_table.prompts.SpeakerTokens.numbers``)."""
    return make_voice_prompt(
        "", np.zeros(0, np.int32), np.zeros((0, 0), np.float32), numbers[:NUM_GLOBAL].astype(np.float32), numbers[NUM_GLOBAL:]
    )


def make_voice_prompt(
    prompt_text: str, speech_tokens: IntArray, speech_feat: FloatArray, speaker_embedding: FloatArray, speaker_labels: IntArray = NO_LABELS
) -> VoicePrompt:
    """A checked ``VoicePrompt`` that owns its arrays; they are read-only, since sessions share it.

    speech_tokens int [P], speech_feat float [2P, bins] or empty, speaker_embedding float [E]. Raises ``InvalidInputError``. The renderer
    checks bins and E against its networks.
    """
    frames = MEL_FRAMES_PER_TOKEN * speech_tokens.shape[0] if speech_tokens.ndim == 1 else -1
    fits = speech_feat.ndim == 2 and frames >= 0 and (len(speech_feat) == frames or not speech_feat.size)
    if not fits or speaker_embedding.ndim != 1:
        raise InvalidInputError(
            f"A voice has speech tokens of shape {list(speech_tokens.shape)}, features {list(speech_feat.shape)} "
            f"and speaker embedding {list(speaker_embedding.shape)}; "
            f"supply [P], [{MEL_FRAMES_PER_TOKEN} P, mel bins] and one vector."
        )
    if not (np.isfinite(speech_feat).all() and np.isfinite(speaker_embedding).all()):
        raise InvalidInputError("The voice's features contain NaN or infinity; build it again from another recording.")
    voice = VoicePrompt(
        prompt_text,
        np.array(speech_tokens, dtype=np.int32),
        np.array(speech_feat, dtype=np.float32),
        np.array(speaker_embedding, dtype=np.float32),
        np.array(speaker_labels, dtype=np.int32),
    )
    for array in (voice.speech_tokens, voice.speech_feat, voice.speaker_embedding, voice.speaker_labels):
        array.setflags(write=False)
    return voice
