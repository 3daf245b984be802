"""The golden utterance: what a checkpoint makes of one fixed recording, text and seed, stage by stage, and how two of them compare.

No server, no files: ``golden_check`` takes the utterance from a server, ``golden_store`` keeps it. Every stage after the first is
given what the *stored* stages before it made. So a difference names the model that makes it, hops are cut alike however fast the server is,
and audio can be compared where another tier's language model chose other tokens.

==============  ==================================================  ========================================================
compared        in one environment (``exact``)                      between environments (tier, GPU, versions, our code)
==============  ==================================================  ========================================================
voice tokens    equal                                               nine in ten equal: close decisions of the quantizer
embedding       cosine 0.9999                                       cosine 0.99
speech tokens   equal: the draws are the seed's, and all sums have  not compared: in 16 bit one close decision in a few dozen
                the same order                                      turns out differently, and all later tokens with it
audio           log-mel distance 0.02: nothing else is random, and  0.35: equal models in 16 and 32 bit, or with other hops, are
                equal on the CPU bit by bit                         0.16 to 0.24 apart with random weights (docs/log/server.md)
==============  ==================================================  ========================================================

Recorded graphs count as another environment every time: kernels that add with atomics are 0.02 to 0.05 apart from run to run with random
weights, whose pitch follows the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bistream.hops.policy import HopPolicy
from bistream.hops.progress import HopProgress
from bistream.types import FloatArray, IntArray
from bistream.voice.features import mel_24k

RECIPE = "2"  # of the inputs below; another recipe is another golden utterance
TEXT = "Hello."
TRANSCRIPT = "A test."
SEED = 20_240_911
LOUDEST = 1.0
QUIETEST = 1e-5  # root mean square; silence is a fault
VOICE_TOKENS_EQUAL = 0.9
COSINE_EXACT, COSINE_OTHER = 0.9999, 0.99
DISTANCE_EXACT, DISTANCE_OTHER = 0.02, 0.35


@dataclass(frozen=True)
class Golden:
    """voice_tokens int32 [P] and embedding float32 [E] of ``recording()``; speech_tokens int32 [T] of ``TEXT`` in this voice; waveform
    float32 [N] of these tokens, 24 kHz."""

    voice_tokens: IntArray
    embedding: FloatArray
    speech_tokens: IntArray
    waveform: FloatArray


def hops(tokens: IntArray, prompt_tokens: int, policy: HopPolicy) -> list[IntArray]:
    """The tokens in the pieces that the front model cuts of a whole text; at least one, the last one final and perhaps empty."""
    ends: list[int] = []
    while True:
        sent = ends[-1] if ends else 0
        progress = HopProgress(prompt_tokens, len(tokens), sent, has_ended=True)
        due = policy.due_hop(progress)
        assert due is not None, "all tokens are there"
        if due.is_final:
            return np.split(tokens, ends)
        ends.append(sent + due.tokens)


def audio_fault(waveform: FloatArray) -> str | None:
    """Why this cannot be valid output; ``None`` for possible audio."""
    if not waveform.size:
        return "is empty"
    if not np.isfinite(waveform).all():
        return "contains NaN or infinity"
    if (peak := float(np.abs(waveform).max())) > LOUDEST:
        return f"has a peak of {peak:.3g}"
    return "is silent" if float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))) < QUIETEST else None


def distance(first: FloatArray, second: FloatArray) -> float:
    """Mean absolute difference of the natural logarithms of both mel spectra; infinite for different lengths."""
    if first.shape != second.shape:
        return float("inf")
    return float(np.abs(mel_24k(first) - mel_24k(second)).mean())


def difference(stored: Golden, here: Golden, exact: bool) -> str | None:
    """What the first stage that differs does otherwise; ``None`` when all are alike. ``here`` was made with the stored inputs."""
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _tokens_differ("audio_tokenizer hears", stored.voice_tokens, here.voice_tokens, 1.0 if exact else VOICE_TOKENS_EQUAL),
        lambda: _embedding_differs(stored.embedding, here.embedding, COSINE_EXACT if exact else COSINE_OTHER),
        lambda: _tokens_differ("llm_bistream speaks", stored.speech_tokens, here.speech_tokens, 1.0) if exact else None,
        lambda: _audio_differs(stored.waveform, here.waveform, DISTANCE_EXACT if exact else DISTANCE_OTHER),
    )
    return next((found for check in checks if (found := check()) is not None), None)


def _tokens_differ(subject: str, stored: IntArray, here: IntArray, least: float) -> str | None:
    if len(stored) != len(here) and least < 1.0:
        return f"{subject} {len(here)} speech tokens instead of {len(stored)}"
    shared = min(len(stored), len(here))
    unequal = np.flatnonzero(stored[:shared] != here[:shared])
    if len(stored) == len(here) and len(unequal) <= (1.0 - least) * shared:
        return None
    first = int(unequal[0]) if len(unequal) else shared
    return f"{subject} other speech tokens, from number {first + 1} of {len(stored)} on"


def _embedding_differs(stored: FloatArray, here: FloatArray, least: float) -> str | None:
    if stored.shape != here.shape or not np.isfinite(here).all():
        return "speaker_embedding makes no embedding of the same size"
    cosine = float(stored @ here / max(float(np.linalg.norm(stored) * np.linalg.norm(here)), 1e-12))
    return None if cosine >= least else f"speaker_embedding makes another embedding (cosine {cosine:.4f}, at least {least:g})"


def _audio_differs(stored: FloatArray, here: FloatArray, most: float) -> str | None:
    apart = distance(stored, here)
    if apart <= most:
        return None
    return f"token2wav makes other audio of the same speech tokens (log-mel distance {apart:.3f}, at most {most:g})"
