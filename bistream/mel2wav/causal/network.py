"""The causal HiFT: mel -> f0 -> harmonic source -> waveform. Keys of the modules are those of ``hift.pt``. Called by ``causal.stage``.

Positions of the decoder: a mel frame is 8, 40 and 120 positions after the three stages. The last stage has one position more than frames
(its first one repeats the second, as a reflection), because the STFT has one frame more than hops; a call that goes on computes that one
again, so a call over N frames has 120 N + 1 positions of the last stage, whether it is the first or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import CausalVocoderConfig
from bistream.mel2wav.causal.layers import CausalConv, CausalResBlock, LayerMemory, Upsampling
from bistream.mel2wav.causal.source import CausalF0Predictor, CausalSource
from bistream.mel2wav.fourier import FourierFrames
from bistream.mel2wav.hift import LAST_LEAKY_SLOPE, MAX_MAGNITUDE, source_strides, stage_channels

POST_KERNEL = 7


@dataclass(frozen=True)
class Signal:
    """What part of its signal each row is. frames: int64 [B], mel frames. starts, ends: bool [B], its first, or last part."""

    frames: Tensor
    starts: Tensor
    ends: Tensor


class CausalHiFT(nn.Module):
    """The whole vocoder. ``f0_predictor``, ``m_source`` and ``decode`` are separate: they are at different frames of a signal."""

    def __init__(self, config: CausalVocoderConfig) -> None:
        super().__init__()
        self.config = config
        channels, strides = stage_channels(config), source_strides(config)
        spectrum = config.istft_n_fft + 2
        self.samples_per_frame = math.prod(config.upsample_rates) * config.istft_hop_len
        self.rates = tuple(math.prod(config.upsample_rates[: stage + 1]) for stage in range(len(channels)))  # 8, 40, 120
        self.f0_predictor = CausalF0Predictor(config)
        self.m_source = CausalSource(config)
        self.fourier = FourierFrames(config.istft_n_fft, config.istft_hop_len)
        self.conv_pre = nn.Conv1d(config.in_channels, config.base_channels, config.conv_pre_look_right + 1)
        self.ups = nn.ModuleList(
            Upsampling(config.base_channels // 2**stage, channels[stage], kernel, factor)
            for stage, (factor, kernel) in enumerate(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True))
        )
        self.source_downs = nn.ModuleList(
            nn.Conv1d(spectrum, width, 1 if stride == 1 else 2 * stride, stride) for width, stride in zip(channels, strides, strict=True)
        )
        of_sources = zip(channels, config.source_resblock_kernel_sizes, config.source_resblock_dilation_sizes, strict=True)
        self.source_resblocks = nn.ModuleList(CausalResBlock(width, kernel, dilations) for width, kernel, dilations in of_sources)
        self.resblocks = nn.ModuleList(
            CausalResBlock(width, kernel, dilations)
            for width in channels
            for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.conv_post = CausalConv(channels[-1], spectrum, POST_KERNEL)
        # STFT frames that the strided convolution of the first stage reads before those of a call, and their samples
        self.source_frames_before = strides[0] - 1
        self.source_samples_before = self.source_frames_before * config.istft_hop_len + config.istft_n_fft // 2
        self.source_samples_after = config.istft_n_fft // 2  # that the last STFT frame of a call reads
        # samples at the end of a call that the next frame of the inverse STFT changes, and frames that reach behind them
        self.unfinished_samples = config.istft_n_fft // 2 - config.istft_hop_len
        self.spectrum_history = -(-(self.unfinished_samples + config.istft_n_fft // 2) // config.istft_hop_len) - 1

    def decode(self, mel: Tensor, source: Tensor, signal: Signal, memory: LayerMemory) -> Tensor:
        """N frames of each row.

        mel: [B, 80, N + conv_pre_look_right], zeros behind its end. source: [B, before + 480 N + after], from ``source_samples_before``
        before the first new frame on, reflected at both ends of a signal. Returns samples within the audio limit, those of the first new
        frame from ``first_sample`` on; ``unfinished_samples`` before them are due where a row goes on, and as many are not at its end.
        """
        spectrum = self.source_spectrum(source, signal)
        x = self.conv_pre(mel)
        count, last = len(self.config.resblock_kernel_sizes), len(self.ups) - 1
        for stage, up in enumerate(self.ups):
            assert isinstance(up, Upsampling)
            rate = self.rates[stage]
            x = up.step(F.leaky_relu(x, self.config.lrelu_slope), memory, rate)
            if stage == last:
                x = self._with_front(x, signal, memory)
            x = x + self._source_branch(stage, spectrum, memory)
            blocks = self.resblocks[stage * count : (stage + 1) * count]
            x = torch.stack([_step(block, x, memory, rate) for block in blocks]).mean(0)
        x = self.conv_post.step(F.leaky_relu(x, LAST_LEAKY_SLOPE), memory, self.rates[last])
        bins = self.config.istft_n_fft // 2 + 1
        magnitude, phase = x[:, :bins].exp().clamp(max=MAX_MAGNITUDE), x[:, bins:].sin()
        waves = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)
        exists = torch.arange(waves.shape[2], device=waves.device) <= (self.rates[last] * signal.frames)[:, None]  # else of the padding
        waves = memory.extend(torch.where(exists[:, None], waves, 0.0), self.spectrum_history, self.rates[last])
        return self.waveform(waves, signal)

    @property
    def first_sample(self) -> int:
        """Place of the first sample of a call's first frame in the output of ``decode``."""
        return self.spectrum_history * self.config.istft_hop_len + self.config.istft_n_fft // 2

    def reflected(self, position: Tensor, signal: Signal) -> Tensor:
        """Where the sample at ``position`` [B, N] of a call is found: before the first one of a signal, and behind its last, reflected."""
        position = torch.where(signal.starts[:, None], position.abs(), position)
        last = (signal.frames * self.samples_per_frame)[:, None] - 1
        return torch.where(signal.ends[:, None] & (position > last), 2 * last - position, position)

    def source_spectrum(self, source: Tensor, signal: Signal) -> Tensor:
        """source as in ``decode`` -> STFT frames [B, n_fft + 2, before + 120 N + 1]; zeros before the start of a signal."""
        spectrum = self.fourier.analysed(source).transpose(1, 2)
        exists = torch.arange(spectrum.shape[2], device=source.device) >= self.source_frames_before
        return torch.where(signal.starts[:, None, None] & ~exists, 0.0, spectrum)

    def _source_branch(self, stage: int, spectrum: Tensor, memory: LayerMemory) -> Tensor:
        down, block = self.source_downs[stage], self.source_resblocks[stage]
        assert isinstance(down, nn.Conv1d)
        return _step(block, down(spectrum[:, :, self.source_frames_before - (down.stride[0] - 1) :]), memory, self.rates[stage])

    def _with_front(self, x: Tensor, signal: Signal, memory: LayerMemory) -> Tensor:
        """[B, C, 120 N] -> [B, C, 120 N + 1]: the position before, or at the start of a signal its second one."""
        extended = memory.extend(x, 1, self.rates[-1])
        front = torch.where(signal.starts[:, None, None], x[:, :, 1:2], extended[:, :, :1])
        return torch.cat([front, x], dim=2)

    def waveform(self, waves: Tensor, signal: Signal) -> Tensor:
        """Real and imaginary parts [B, n_fft + 2, ``spectrum_history`` + frames] -> samples; see ``decode``."""
        fourier = self.fourier
        summed = fourier.overlapped(waves.transpose(1, 2))
        edge = fourier.left_gain.shape[0]
        size = summed.shape[1] - fourier.n_fft // 2 + self.unfinished_samples  # behind that no frame is complete, nor the signal's end
        summed = summed[:, :size]
        position = torch.arange(size, device=waves.device) - self.first_sample
        gain = (1 / fourier.interior)[position % fourier.hop].expand(len(summed), -1)
        left = fourier.left_gain[position.clamp(0, edge - 1)] * gain
        gain = torch.where(signal.starts[:, None] & (position >= 0) & (position < edge), left, gain)
        from_end = (signal.frames * self.samples_per_frame)[:, None] - 1 - position
        right = fourier.right_gain[from_end.clamp(0, edge - 1)] * gain
        gain = torch.where(signal.ends[:, None] & (from_end >= 0) & (from_end < edge), right, gain)
        return (summed * gain).clamp(-self.config.audio_limit, self.config.audio_limit)


def _step(block: nn.Module, x: Tensor, memory: LayerMemory, rate: int) -> Tensor:
    assert isinstance(block, CausalResBlock)
    return block.step(x, memory, rate)
