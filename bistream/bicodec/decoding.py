"""Whole sequences of semantic tokens to audio, any number and any lengths in one call; and the checks of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bistream.bicodec.network import BiCodec
from bistream.bicodec.recorded import RecordedCalls
from bistream.bicodec.signal import WholeSignals
from bistream.errors import InvalidInputError
from bistream.mel2wav.grouping import group_similar
from bistream.types import FloatArray, IntArray

MAX_BATCH_TOKENS = 1024  # padded tokens of one network call; at full size a token takes 0.4 MB of activations at its peak


def decode(network: BiCodec, semantic: Sequence[IntArray], global_tokens: Sequence[IntArray]) -> list[FloatArray]:
    """semantic: int [T] of each speech; global_tokens: int [32], of its voice -> samples float32 [samples_per_token T].

    Equal to each one alone but for rounding: padding behind a shorter one is not heard. Raises ``InvalidInputError``.
    """
    for tokens in semantic:
        check_semantic(network, tokens)
    voices = [voice_of(network, tokens) for tokens in global_tokens]
    return decode_windows(network, semantic, voices)


def decode_windows(
    network: BiCodec, semantic: Sequence[IntArray], voices: Sequence[Tensor], recorded: RecordedCalls | None = None
) -> list[FloatArray]:
    """The same of tokens that are checked and voices as of ``voice_of``. recorded: used where the windows fit."""
    lengths = [len(tokens) for tokens in semantic]
    audio = [np.zeros(0, np.float32) for _ in semantic]
    for group in group_similar(lengths, MAX_BATCH_TOKENS):
        if not lengths[group[0]]:  # the longest of the group
            continue
        device = voices[0].device
        sizes = [lengths[row] for row in group]
        padded = padded_tokens([semantic[row] for row in group], max(sizes)).to(device)
        of_rows = torch.stack([voices[row] for row in group])
        samples = None if recorded is None else recorded.window(padded, sizes, of_rows)
        if samples is None:
            signal = WholeSignals(None if min(sizes) == max(sizes) else torch.tensor(sizes, device=device))
            samples = network.audio(padded, of_rows, signal)
        for row, row_samples in zip(group, samples.cpu().numpy(), strict=True):
            audio[row] = row_samples[: lengths[row] * network.config.samples_per_token].copy()
    return audio


def padded_tokens(sequences: Sequence[IntArray], size: int) -> Tensor:
    """int64 [B, size]; token 0 behind the end of a row."""
    padded = torch.zeros(len(sequences), size, dtype=torch.int64)
    for row, tokens in zip(padded, sequences, strict=True):
        row[: len(tokens)] = torch.as_tensor(tokens)
    return padded


def voice_of(network: BiCodec, global_tokens: IntArray) -> Tensor:
    """int [32] -> [C], what the decoder knows of the voice. Raises ``InvalidInputError``."""
    sizes = network.config.speaker
    if global_tokens.shape != (sizes.tokens,):
        raise InvalidInputError(f"A voice has {sizes.tokens} global tokens, and these have the shape {list(global_tokens.shape)}.")
    _check_range(global_tokens, sizes.codes, "Global")
    device = network.prenet.linear.weight.device
    return network.voice_vector(torch.as_tensor(global_tokens, dtype=torch.int64, device=device)[None])[0]


def check_semantic(network: BiCodec, tokens: IntArray) -> None:
    """Raises ``InvalidInputError``; on a GPU an unknown token would end the process."""
    if tokens.ndim != 1:
        raise InvalidInputError(f"Semantic tokens have the shape {list(tokens.shape)}; send one sequence.")
    _check_range(tokens, network.config.quantizer.codes, "Semantic")


def _check_range(tokens: IntArray, codes: int, kind: str) -> None:
    if not np.issubdtype(tokens.dtype, np.integer):
        raise InvalidInputError(f"{kind} tokens are {tokens.dtype}; send integers.")
    if tokens.size and not (0 <= tokens.min() and tokens.max() < codes):
        raise InvalidInputError(f"{kind} tokens go from {tokens.min()} to {tokens.max()}; only 0 to {codes - 1} exist.")
