"""A whole utterance through the vocoder in pieces: time and memory of a step do not depend on its length. Called by ``mel2wav.stage``.

Every piece is decoded with as many frames on both sides as a sample of it depends on, so the joined pieces equal one call over
the whole mel up to rounding, unlike the joints of a stream, which cannot wait for the frames to the right.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bistream.checkpoints.config import VocoderConfig
from bistream.gpu.steps import Steps, tiles
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME
from bistream.mel2wav.hift import CONDNET_INDICES, HiFT, SourceStart
from bistream.mel2wav.noise import normal_noise

F0_HALO_FRAMES = len(CONDNET_INDICES)  # one frame of context per convolution of the f0 predictor
_PRE_POST_RADIUS = 3  # of the first and the last convolution, whose kernels have 7 taps


def halo_frames(config: VocoderConfig) -> int:
    """Mel frames on each side of a frame on which its audio depends, f0 excluded (the source is computed beforehand).

    The longest path begins at the mel, or enters with the source at one of the stages.
    """
    rate, path, of_blocks = (
        1,
        float(_PRE_POST_RADIUS),
        max(map(_block_radius, config.resblock_kernel_sizes, config.resblock_dilation_sizes)),
    )
    of_sources = map(_block_radius, config.source_resblock_kernel_sizes, config.source_resblock_dilation_sizes)
    for up, kernel, of_source in zip(config.upsample_rates, config.upsample_kernel_sizes, of_sources, strict=True):
        rate *= up
        path = max(path + kernel / 2 / rate, 1 + of_source / rate) + of_blocks / rate  # 1: the source's STFT and its strided convolution
    return math.ceil(path + _PRE_POST_RADIUS / rate) + 1  # 1: the inverse STFT


def _block_radius(kernel: int, dilations: tuple[int, ...]) -> int:
    return sum((kernel - 1) // 2 * (dilation + 1) for dilation in dilations)


def whole_utterance(hift: HiFT, mel: Tensor, key: tuple[int, int], noise_gain: Tensor | float, piece_frames: int) -> Steps[list[Tensor]]:
    """mel float32 [80, T] -> the audio of each piece, float32 [480 * frames]. key, noise_gain: of the source's noise."""
    frames, device = mel.shape[1], mel.device
    pitches = []
    for piece in tiles(frames, piece_frames):
        begin, end = max(0, piece.start - F0_HALO_FRAMES), min(frames, piece.stop + F0_HALO_FRAMES)
        pitches.append(hift.f0(mel[None, :, begin:end])[:, piece.start - begin : piece.stop - begin])
        yield
    f0 = torch.cat(pitches, dim=1)
    advance = hift.m_source.advance(f0)
    zero = torch.zeros(1, advance.shape[1], dtype=torch.float64, device=device)
    phase = hift.m_source.frame_phase(advance, _start(zero, True, frames)).float()
    yield
    halo, keys, audio = halo_frames(hift.config), torch.tensor([key], device=device), []
    for piece in tiles(frames, piece_frames):
        begin, end = max(0, piece.start - halo), min(frames, piece.stop + halo)
        known = slice(begin, min(frames, end + 1))  # a frame's source depends on the next frame's f0
        length = known.stop - begin
        first_sample = torch.tensor([begin * SAMPLES_PER_MEL_FRAME], device=device)
        noise = normal_noise(keys, first_sample, length * SAMPLES_PER_MEL_FRAME) * noise_gain
        start = _start(zero, begin == 0, length)
        source = hift.m_source.signal(f0[:, known], advance[:, :, known], phase[:, :, known], noise, start)
        source = source[:, : (end - begin) * SAMPLES_PER_MEL_FRAME]
        decoded = hift.decode(mel[None, :, begin:end], source, torch.tensor([end - begin], device=device))[0]
        first = (piece.start - begin) * SAMPLES_PER_MEL_FRAME
        audio.append(decoded[first : first + (piece.stop - piece.start) * SAMPLES_PER_MEL_FRAME].clone())
        yield
    return audio


def _start(phase: Tensor, starts: bool, frames: int) -> SourceStart:
    device = phase.device
    return SourceStart(phase, torch.zeros(1, dtype=torch.int64, device=device), torch.tensor([starts], device=device),
                       torch.tensor([frames], device=device))  # fmt: skip
