"""HiFT: mel -> f0 -> harmonic source -> waveform, a neural source filter followed by an inverse STFT.

In: log-mel [B, 80, T] (50 frames per second). Out: waveform [B, 480 T]. Rows of a batch may have different lengths
(``RowMasks``): every convolution then sees zeros beyond a row's end, as if the row were alone. Constants are
buffers; no tensor is read back to the host. Called by ``mel2wav.stage``; keys of the modules are those of ``hift.pt``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.checkpoints.config import VocoderConfig
from bistream.mel2wav.fourier import FourierFrames

CONDNET_INDICES = (0, 2, 4, 6, 8)  # upstream's f0 predictor is a Sequential; odd indices are activations
LAST_LEAKY_SLOPE = 0.01  # the activation before conv_post has PyTorch's default slope, unlike the others
MAX_MAGNITUDE = 100.0
SNAKE_EPSILON = 1e-9


def stage_channels(config: VocoderConfig) -> tuple[int, ...]:
    """Channels after each upsampling stage."""
    return tuple(config.base_channels // 2 ** (stage + 1) for stage in range(len(config.upsample_rates)))


def source_strides(config: VocoderConfig) -> tuple[int, ...]:
    """Stride that takes the source's STFT frames to the rate of each upsampling stage: 15, 3, 1 for rates 8, 5, 3."""
    return tuple(math.prod(config.upsample_rates[stage + 1 :]) for stage in range(len(config.upsample_rates)))


class RowMasks:
    """Masks of the real positions of a padded batch, at the frame rate and after each upsampling stage.

    frames: int64 [B], valid mel frames of each row. num_frames: padded length. ``spectrum`` has one position more than
    the last stage: STFT frames are centred on both ends.
    """

    def __init__(self, frames: Tensor, num_frames: int, config: VocoderConfig) -> None:
        rates = [math.prod(config.upsample_rates[: stage + 1]) for stage in range(len(config.upsample_rates))]
        self.mel = self._mask(frames, num_frames)
        self.stages = [self._mask(frames * rate, num_frames * rate) for rate in rates[:-1]]
        self.spectrum = self._mask(frames * rates[-1] + 1, num_frames * rates[-1] + 1)
        self.stages.append(self.spectrum)

    @staticmethod
    def _mask(lengths: Tensor, size: int) -> Tensor:
        positions = torch.arange(size, device=lengths.device)
        return (positions < lengths[:, None]).float()[:, None, :]  # [B, 1, size]


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def _same_padding(kernel_size: int, dilation: int = 1) -> int:
    return (kernel_size - 1) * dilation // 2


def channels_last(x: Tensor) -> Tensor:
    """The same [B, C, T] with its channels side by side in memory, as CPUs convolve fastest: 11 taps in a quarter to half of the time."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


class Conv(nn.Conv1d):
    """Through two dimensions: ``nn.Conv1d`` would undo the order of ``channels_last``, and is otherwise the same call."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation = (1, self.stride[0]), (0, int(self.padding[0])), (1, self.dilation[0])
        return F.conv2d(input.unsqueeze(2), weight.unsqueeze(2), bias, stride, padding, dilation).squeeze(2)


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha, one alpha per channel (Liu et al. 2020, linear scale)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T]
        alpha = self.alpha[:, None]
        wave = torch.sin(x * alpha)
        return torch.addcmul(x, wave * wave, 1.0 / (alpha + SNAKE_EPSILON))


class ResBlock(nn.Module):
    """Snake, dilated convolution, Snake, convolution, residual; once per dilation."""

    def __init__(self, channels: int, kernel_size: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            Conv(channels, channels, kernel_size, dilation=d, padding=_same_padding(kernel_size, d)) for d in dilations
        )
        self.convs2 = nn.ModuleList(Conv(channels, channels, kernel_size, padding=_same_padding(kernel_size)) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:  # [B, C, T]
        for conv1, conv2, snake1, snake2 in zip(self.convs1, self.convs2, self.activations1, self.activations2, strict=True):
            inner = conv1(_masked(snake1(x), mask))
            x = x + conv2(_masked(snake2(inner), mask))
        return x


class F0Predictor(nn.Module):
    """Five convolutions (five frames of context on each side), then one non-negative number per frame, in Hz."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        widths = [config.in_channels] + [config.f0_channels] * len(CONDNET_INDICES)
        self.condnet = nn.ModuleDict({str(index): Conv(widths[i], widths[i + 1], 3, padding=1) for i, index in enumerate(CONDNET_INDICES)})
        self.classifier = nn.Linear(config.f0_channels, 1)

    def forward(self, mel: Tensor, mask: Tensor | None) -> Tensor:
        x = mel  # [B, 80, T]
        for conv in self.condnet.values():
            x = _masked(F.elu(conv(x)), mask)
        f0: Tensor = self.classifier(x.transpose(1, 2)).squeeze(-1).abs()  # [B, T]
        return f0


@dataclass(frozen=True)
class SourceStart:
    """Phases of the harmonics at the start of a call, in cycles (1 = 2 pi), modulo 1 in float64.

    anchor: int64 [B], the first frame whose phase continues from ``phase``, which is the phase [B, H] of the frame before it.
    starts: bool [B], the signal begins at frame 0: the phase is constant in its first half, as in upstream.
    frames: int64 [B], valid frames of each row. In the second half of the last one the phase is constant, as in upstream.
    """

    phase: Tensor
    anchor: Tensor
    starts: Tensor
    frames: Tensor


class HarmonicSource(nn.Module):
    """Sines of f0 and its overtones plus noise, merged into one signal.

    Upstream sums the phase of every harmonic in float32 over the whole call and interpolates it linearly between frame
    centres. Here the sum over frames runs in float64 modulo one cycle, which keeps float32 exact enough inside a frame
    and lets a later call continue where this one stopped.
    """

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = math.prod(config.upsample_rates) * config.istft_hop_len
        self.l_linear = nn.Linear(config.nb_harmonics + 1, 1)
        self.register_buffer("overtones", torch.arange(1, config.nb_harmonics + 2, dtype=torch.float32)[:, None], persistent=False)
        half = self.samples_per_frame // 2
        # samples from the frame's centre; the first half lies before it
        self.register_buffer("offsets", torch.arange(self.samples_per_frame) + 0.5 - half, persistent=False)
        self.overtones: Tensor
        self.offsets: Tensor

    def merge_noise(self, noise: Tensor) -> Tensor:
        """Noise per harmonic [B, N, H] -> its contribution [B, N] to the output of ``l_linear``."""
        merged: Tensor = noise @ self.l_linear.weight[0]
        return merged

    def noise_gain(self) -> Tensor:
        """Standard deviation of ``merge_noise`` of independent standard normal harmonics: one draw per sample replaces H."""
        gain: Tensor = torch.linalg.vector_norm(self.l_linear.weight[0])
        return gain

    def forward(self, f0: Tensor, merged_noise: Tensor, start: SourceStart) -> tuple[Tensor, Tensor]:
        """f0 [B, T] in Hz, merged_noise [B, 480 T] -> source [B, 480 T] and the phase [B, H, T] (float64) at each frame's centre."""
        advance = self.advance(f0)
        phase = self.frame_phase(advance, start)
        return self.signal(f0, advance, phase.float(), merged_noise, start), phase

    def advance(self, f0: Tensor) -> Tensor:
        """f0 [B, T] in Hz -> cycles per sample [B, H, T], modulo 1."""
        return (f0[:, None, :] * self.overtones / self.config.sampling_rate) % 1

    def signal(self, f0: Tensor, advance: Tensor, phase: Tensor, merged_noise: Tensor, start: SourceStart) -> Tensor:
        """Source [B, 480 T] from the phase [B, H, T] at the frames' centres: elementwise operations and one sum over the harmonics."""
        sines = torch.sin(2 * math.pi * self._sample_phase(phase, advance, start))  # [B, H, T, 480]
        merged = (sines * self.l_linear.weight[0][:, None, None]).sum(1)
        voiced = (f0 > self.config.nsf_voiced_threshold)[:, :, None]
        noise = merged_noise.view(f0.shape[0], -1, self.samples_per_frame)  # [B, T, 480]
        excitation = torch.where(
            voiced,
            self.config.nsf_alpha * merged + self.config.nsf_sigma * noise,
            self.config.nsf_alpha / 3 * noise,
        )
        return torch.tanh(excitation + self.l_linear.bias).flatten(1)

    def frame_phase(self, advance: Tensor, start: SourceStart) -> Tensor:
        """advance [B, H, T] in cycles per sample -> phase at each frame's centre, float64 [B, H, T], modulo 1."""
        total = F.pad(advance.double().cumsum(-1), (1, 0)) * self.samples_per_frame  # [B, H, T + 1]
        index = start.anchor[:, None, None].expand(-1, total.shape[1], 1)
        return (start.phase[:, :, None] + total[:, :, 1:] - total.gather(2, index)) % 1

    def _sample_phase(self, phase: Tensor, advance: Tensor, start: SourceStart) -> Tensor:
        frame = torch.arange(advance.shape[2], device=advance.device)
        is_last = frame == start.frames[:, None] - 1  # [B, T]
        following = advance.roll(-1, 2).masked_fill(is_last[:, None], 0.0)
        leading = advance.masked_fill(((frame == 0) & start.starts[:, None])[:, None], 0.0)
        half = self.samples_per_frame // 2
        before = phase[..., None] + leading[..., None] * self.offsets[:half]
        after = phase[..., None] + following[..., None] * self.offsets[half:]
        return torch.cat([before, after], dim=-1)


class HiFT(nn.Module):
    """The whole vocoder. ``f0``, ``m_source`` and ``decode`` are separate so that a stream can keep its source continuous."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = math.prod(config.upsample_rates) * config.istft_hop_len
        channels, strides = stage_channels(config), source_strides(config)
        spectrum = config.istft_n_fft + 2
        self.f0_predictor = F0Predictor(config)
        self.m_source = HarmonicSource(config)
        self.fourier = FourierFrames(config.istft_n_fft, config.istft_hop_len)
        self.conv_pre = Conv(config.in_channels, config.base_channels, 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(config.base_channels // 2**i, channels[i], kernel, rate, padding=(kernel - rate) // 2)
            for i, (rate, kernel) in enumerate(zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True))
        )
        self.source_downs = nn.ModuleList(
            Conv(spectrum, width, 1 if stride == 1 else 2 * stride, stride, padding=stride // 2 if stride > 1 else 0)
            for width, stride in zip(channels, strides, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations)
            for width, kernel, dilations in zip(
                channels, config.source_resblock_kernel_sizes, config.source_resblock_dilation_sizes, strict=True
            )
        )
        self.resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations)
            for width in channels
            for kernel, dilations in zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
        )
        self.conv_post = Conv(channels[-1], spectrum, 7, padding=3)

    def f0(self, mel: Tensor, masks: RowMasks | None = None) -> Tensor:
        """mel [B, 80, T] -> f0 [B, T] in Hz."""
        f0: Tensor = self.f0_predictor(mel, masks.mel if masks else None)
        return f0

    def decode(self, mel: Tensor, source: Tensor, frames: Tensor, masks: RowMasks | None = None) -> Tensor:
        """mel [B, 80, T] (zero beyond a row's end), source [B, 480 T], valid frames [B] -> waveform [B, 480 T] within the audio limit."""
        lengths = frames * self.samples_per_frame
        spectrum = _masked(self.fourier.stft(source, lengths), masks.spectrum if masks else None)
        x = self.conv_pre(mel)
        mask = masks.mel if masks else None
        num_kernels = len(self.config.resblock_kernel_sizes)
        for stage, up in enumerate(self.ups):
            x = up(_masked(F.leaky_relu(x, self.config.lrelu_slope), mask))
            if stage == len(self.ups) - 1:
                x = torch.cat([x[:, :, 1:2], x], dim=2)  # one reflected position: there is one STFT frame more than hops
            if x.device.type == "cpu":
                x = channels_last(x)
            mask = masks.stages[stage] if masks else None
            x = x + self.source_resblocks[stage](self.source_downs[stage](spectrum), mask)
            blocks = self.resblocks[stage * num_kernels : (stage + 1) * num_kernels]
            x = reduce(torch.add, [block(x, mask) for block in blocks]) / num_kernels
        x = self.conv_post(_masked(F.leaky_relu(x, LAST_LEAKY_SLOPE), mask))
        bins = self.config.istft_n_fft // 2 + 1
        magnitude = _masked(x[:, :bins].exp().clamp(max=MAX_MAGNITUDE), mask)
        waveform = self.fourier.istft(magnitude, x[:, bins:].sin(), lengths)
        return waveform.clamp(-self.config.audio_limit, self.config.audio_limit)
