"""The numbers of the default family, by the names that tests use."""

from __future__ import annotations

from bistream.families.registry import DEFAULT_FAMILY

AUDIO_FORMAT, BLOCKS = DEFAULT_FAMILY.audio_format, DEFAULT_FAMILY.blocks
SAMPLE_RATE = AUDIO_FORMAT.sample_rate
SPEECH_TOKENS_PER_SECOND = AUDIO_FORMAT.tokens_per_second
MEL_FRAMES_PER_TOKEN = AUDIO_FORMAT.mel_frames_per_token
SAMPLES_PER_MEL_FRAME = AUDIO_FORMAT.samples_per_mel_frame
MEL_FRAMES_PER_SECOND = AUDIO_FORMAT.mel_frames_per_second
SAMPLES_PER_TOKEN = AUDIO_FORMAT.samples_per_token
LOOKAHEAD_TOKENS = AUDIO_FORMAT.lookahead_tokens
CHUNK_TOKENS = AUDIO_FORMAT.chunk_tokens
VOCODER_OVERLAP_FRAMES = AUDIO_FORMAT.vocoder_overlap_frames
VOCODER_OVERLAP_SAMPLES = AUDIO_FORMAT.vocoder_overlap_samples
TEXT_BLOCK_TOKENS = BLOCKS.text_tokens
SPEECH_BLOCK_TOKENS = BLOCKS.speech_tokens
MIN_SPEECH_TOKENS_PER_TEXT_TOKEN = BLOCKS.min_speech_per_text
MAX_SPEECH_TOKENS_PER_TEXT_TOKEN = BLOCKS.max_speech_per_text
