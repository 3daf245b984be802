"""Validates the flow's inputs: tokens, prompts and lengths. No torch. Raises ``InvalidInputError``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from bistream.checkpoints.config import FlowConfig
from bistream.errors import InvalidInputError
from bistream.types import VoicePrompt

MAX_FRAMES = 15_000  # of the reference's fixed noise buffer: no sequence, prompt included, is longer at a time (planning.reanchor)


def check_tokens(token_ids: Sequence[int], config: FlowConfig) -> list[int]:
    """The tokens as plain integers; all must be in the vocabulary."""
    tokens = [int(token) for token in token_ids]
    if tokens and not (min(tokens) >= 0 and max(tokens) < config.vocab_size):
        raise InvalidInputError(f"Speech tokens must be 0 to {config.vocab_size - 1}; got {min(tokens)} to {max(tokens)}.")
    return tokens


def check_length(tokens: int, config: FlowConfig) -> None:
    """tokens: length of a whole sequence, prompt included."""
    if tokens * config.token_mel_ratio > MAX_FRAMES:
        raise too_long(tokens, MAX_FRAMES // config.token_mel_ratio, config)


def too_long(tokens: int, most: int, config: FlowConfig) -> InvalidInputError:
    """tokens: of a prompt and what is computed with it at once, which may be ``most``."""
    seconds, most_s = tokens / config.tokens_per_second, most / config.tokens_per_second
    return InvalidInputError(f"Voice and speech together last {seconds:.0f} s; keep what is computed at once within {most_s:g} s.")


def check_prompt(prompt: VoicePrompt, config: FlowConfig) -> list[int]:
    """The prompt's tokens as plain integers. Values of features and embedding are not checked."""
    tokens = check_tokens(prompt.speech_tokens.tolist(), config)
    check_length(len(tokens), config)
    expected = (len(tokens) * config.token_mel_ratio, config.output_size)
    found = prompt.speech_feat.shape
    if found != expected:
        raise InvalidInputError(f"prompt_speech_feat has shape {list(found)}; {len(tokens)} tokens need {list(expected)}.")
    found = prompt.speaker_embedding.shape
    if found != (config.spk_embed_dim,):
        raise InvalidInputError(f"prompt_spk_embedding has shape {list(found)}; it must be [{config.spk_embed_dim}].")
    return tokens


def fingerprint(prompt: VoicePrompt) -> bytes:
    """Hash of everything on which the prompt's flow state depends."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (prompt.speech_tokens, prompt.speech_feat, prompt.speaker_embedding):
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
