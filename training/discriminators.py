"""Discriminators of the vocoder: periods (HiFi-GAN, Kong et al. 2020) and spectra at several resolutions. Used in training alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PERIODS = (2, 3, 5, 7, 11)
RESOLUTIONS = ((1024, 256), (2048, 512), (512, 128))  # FFT size, hop
_SLOPE = 0.1

Judged = tuple[list[Tensor], list[list[Tensor]]]  # scores of each discriminator, and its layers' outputs


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int, width: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, width, 4 * width, 8 * width, 16 * width]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(before, after, (5, 1), (3, 1), padding=(2, 0))) for before, after in zip(widths, widths[1:], strict=False)
        )
        self.last = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, waveform: Tensor) -> tuple[Tensor, list[Tensor]]:
        """waveform [B, N]."""
        padded = F.pad(waveform, (0, -waveform.shape[1] % self.period), mode="reflect")
        x, seen = padded.view(len(padded), 1, -1, self.period), list[Tensor]()
        for layer in self.layers:
            x = F.leaky_relu(layer(x), _SLOPE)
            seen.append(x)
        return self.last(x), seen


class SpectrumDiscriminator(nn.Module):
    def __init__(self, fft: int, hop: int, width: int) -> None:
        super().__init__()
        self.fft, self.hop = fft, hop
        self.register_buffer("window", torch.hann_window(fft), persistent=False)
        self.window: Tensor
        shapes = [((9, 3), (1, 1), 1), *[((9, 3), (2, 1), 2 * width)] * 3, ((3, 3), (1, 1), 2 * width)]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(before, 2 * width, kernel, stride, padding=(kernel[0] // 2, kernel[1] // 2)))
            for kernel, stride, before in shapes
        )
        self.layers[1] = weight_norm(nn.Conv2d(2 * width, 2 * width, (9, 3), (2, 1), padding=(4, 1)))
        self.last = weight_norm(nn.Conv2d(2 * width, 1, (3, 3), padding=1))

    def forward(self, waveform: Tensor) -> tuple[Tensor, list[Tensor]]:
        spectrum = torch.stft(waveform, self.fft, self.hop, window=self.window, return_complex=True)
        x, seen = (spectrum.abs() + 1e-5).log()[:, None], list[Tensor]()
        for layer in self.layers:
            x = F.leaky_relu(layer(x), _SLOPE)
            seen.append(x)
        return self.last(x), seen


class Discriminators(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [*(PeriodDiscriminator(period, width) for period in PERIODS), *(SpectrumDiscriminator(*sizes, width) for sizes in RESOLUTIONS)]
        )

    def forward(self, waveform: Tensor) -> Judged:
        judged = [part(waveform) for part in self.parts]
        return [scores for scores, _ in judged], [seen for _, seen in judged]


def discriminator_loss(real: Judged, made: Judged) -> Tensor:
    """Least squares: 1 for recordings, 0 for the vocoder."""
    return torch.stack(
        [(1 - good.float()).square().mean() + bad.float().square().mean() for good, bad in zip(real[0], made[0], strict=True)]
    ).sum()


def generator_loss(made: Judged) -> Tensor:
    return torch.stack([(1 - scores.float()).square().mean() for scores in made[0]]).sum()


def feature_loss(real: Judged, made: Judged) -> Tensor:
    """L1 between what the layers see."""
    return torch.stack(
        [
            F.l1_loss(bad.float(), good.detach().float())
            for seen, wanted in zip(made[1], real[1], strict=True)
            for bad, good in zip(seen, wanted, strict=True)
        ]
    ).sum()
