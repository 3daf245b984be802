"""The short-time Fourier transform of both vocoders and its inverse, without a library's: rows batch, and shapes stay static in graphs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FourierFrames(nn.Module):
    """STFT and inverse STFT (periodic Hann, centred, reflecting ends) as convolutions or products."""

    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        window = torch.hann_window(n_fft, periodic=True, dtype=torch.float64)
        bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64)
        angle = 2 * math.pi * bins[:, None] * torch.arange(n_fft, dtype=torch.float64) / n_fft  # [bins, n_fft]
        forward = torch.cat([angle.cos(), -angle.sin()]) * window
        # a one-sided spectrum: every bin but the first and the last counts twice; the sine terms of those two are zero
        twice = torch.full_like(bins, 2.0)
        twice[0] = twice[-1] = 1.0
        inverse = torch.cat([angle.cos() * twice[:, None], -angle.sin() * twice[:, None]]) * window / n_fft
        squares = window**2
        interior = squares.view(-1, hop).sum(0)  # overlapping windows seen by each sample of a hop
        # The outermost n_fft / 2 - hop samples of each end miss windows that would start before the first frame (end after the last).
        assert n_fft % (2 * hop) == 0
        edge = n_fft // 2 - hop
        left = torch.stack([squares[i % hop : n_fft // 2 + i + 1 : hop].sum() for i in range(edge)])
        right = torch.stack([squares[n_fft // 2 - 1 - i :: hop].sum() for i in range(edge)])
        for name, value in (("forward_basis", forward[:, None]), ("inverse_basis", inverse[:, None]), ("interior", interior)):
            self.register_buffer(name, value.float(), persistent=False)
        repeated = interior.repeat(edge // hop)
        self.register_buffer("left_gain", (repeated / left).float(), persistent=False)
        self.register_buffer("right_gain", (repeated.flip(0) / right).float(), persistent=False)
        self.forward_basis: Tensor
        self.inverse_basis: Tensor
        self.interior: Tensor
        self.left_gain: Tensor
        self.right_gain: Tensor

    def stft(self, signal: Tensor, lengths: Tensor) -> Tensor:
        """signal [B, N], valid samples [B] -> real and imaginary parts [B, n_fft + 2, N / hop + 1]."""
        return F.conv1d(self.reflect(signal, lengths)[:, None], self.forward_basis, stride=self.hop)

    def analysed(self, samples: Tensor) -> Tensor:
        """Real and imaginary parts [B, frames, n_fft + 2] of every n_fft of these samples [B, N], one hop apart.

        As a product: cuDNN's convolution of one channel takes 50 ms for 64 rows of a second (docs/log/gpu.md).
        """
        return samples.unfold(1, self.n_fft, self.hop) @ self.forward_basis[:, 0].T

    def overlapped(self, waves: Tensor) -> Tensor:
        """Real and imaginary parts [B, frames, n_fft + 2] -> the sums of the windows of all frames [B, (frames - 1) hop + n_fft]."""
        windows = (waves @ self.inverse_basis[:, 0]).view(*waves.shape[:2], -1, self.hop)  # [B, frames, hops of a window, hop]
        count = windows.shape[2]
        total = F.pad(windows[:, :, 0], (0, 0, 0, count - 1))
        for back in range(1, count):
            total[:, back : back + windows.shape[1]] += windows[:, :, back]
        return total.flatten(1)

    def reflect(self, signal: Tensor, lengths: Tensor) -> Tensor:
        """signal [B, N], valid samples [B] -> [B, N + n_fft], each row reflected at its own ends."""
        half = self.n_fft // 2
        index = torch.arange(-half, signal.shape[1] + half, device=signal.device).abs()
        last = lengths[:, None] - 1
        index = torch.where(index > last, 2 * last - index, index).clamp(min=0)
        return signal.gather(1, index)

    def istft(self, magnitude: Tensor, phase: Tensor, lengths: Tensor) -> Tensor:
        """magnitude, phase [B, bins, F], zero magnitude beyond a row's end, valid samples [B] -> signal [B, (F - 1) hop]."""
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)
        half, size = self.n_fft // 2, (magnitude.shape[2] - 1) * self.hop
        signal = F.conv_transpose1d(spectrum, self.inverse_basis, stride=self.hop)[:, 0, half : half + size]
        return self.undo_windows(signal, lengths)

    def undo_windows(self, signal: Tensor, lengths: Tensor) -> Tensor:
        """Divide sums of overlapping frames [B, N], valid samples [B], by the sums of their squared windows."""
        size = signal.shape[1]
        signal = (signal.reshape(signal.shape[0], -1, self.hop) / self.interior).flatten(1)
        edge = self.left_gain.shape[0]
        position = torch.arange(size, device=signal.device)
        from_end = lengths[:, None] - 1 - position  # [B, N]
        left = F.pad(self.left_gain, (0, size - edge), value=1.0)
        right = self.right_gain[from_end.clamp(0, edge - 1)]
        gain = left * torch.where((from_end >= 0) & (from_end < edge), right, 1.0)
        return signal * gain
