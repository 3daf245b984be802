"""The operations between the convolutions: small tensor functions, each of which ``torch.compile`` turns into one or two GPU kernels.

Sizes are dynamic, so that a function is compiled once for all buckets. Activations are [B, positions, channels] (or with the last two
swapped; vectors and masks are shaped to match) in the dtype of the convolutions; all arithmetic is in float32. Biases are added here
rather than by the convolutions, since PyTorch would add them in a separate pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bistream.mel2wav.causal.graphs.meta import FRAMES, KEPT, NEW, SLOT
from bistream.mel2wav.fourier import FourierFrames
from bistream.mel2wav.hift import MAX_MAGNITUDE, SNAKE_EPSILON


def _column(meta: Tensor, number: int) -> Tensor:
    return meta[:, number, None]  # [B, 1]


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    wave = torch.sin(x * alpha)
    return x + wave * wave / (alpha + SNAKE_EPSILON)


def snake(x: Tensor, bias: Tensor, alpha: Tensor, mask: Tensor) -> Tensor:
    """Activation of x + bias, zero outside the mask."""
    return torch.where(mask, _snake(x.float() + bias, alpha), 0.0).to(x.dtype)


def add_and_snake(parts: list[Tensor], bias: Tensor, alphas: list[Tensor], mask: Tensor) -> list[Tensor]:
    """The sum of ``parts`` and bias, then its activations, one for each of ``alphas``."""
    total = sum((part.float() for part in parts[1:]), parts[0].float()) + bias
    active = [torch.where(mask, _snake(total, alpha), 0.0) for alpha in alphas]
    return [value.to(parts[0].dtype) for value in (total, *active)]


def add_and_leak(parts: list[Tensor], bias: Tensor, share: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
    """Leaky ReLU of the sum of ``parts`` and bias times ``share``, zero outside the mask."""
    total = (sum((part.float() for part in parts[1:]), parts[0].float()) + bias) * share
    return torch.where(mask, torch.where(total > 0, total, total * slope), 0.0).to(parts[0].dtype)


def gather_mel(slot_mel: Tensor, new_mel: Tensor, meta: Tensor, frame: Tensor) -> Tensor:
    """Kept and new frames of every row: [B, T, 80], zero beyond a row's end. slot_mel: [slots, kept, 80]; new_mel: [columns, 80]."""
    kept = slot_mel[_column(meta, SLOT), frame.clamp(max=slot_mel.shape[1] - 1)]
    column = _column(meta, NEW) + frame - _column(meta, KEPT)
    new = new_mel[column.clamp(0, new_mel.shape[0] - 1)]
    is_kept, is_real = frame < _column(meta, KEPT), frame < _column(meta, FRAMES)
    return torch.where(is_kept[..., None], kept, torch.where(is_real[..., None], new, 0.0))


def polar_spectrum(fourier: FourierFrames, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Log magnitude and phase [B, frames, n_fft + 2 or more] -> real and imaginary parts [B, frames, n_fft + 2], zero outside the mask."""
    bins = fourier.n_fft // 2 + 1
    value = x.float() + bias
    magnitude = torch.where(mask, value[..., :bins].exp().clamp(max=MAX_MAGNITUDE), 0.0)
    phase = value[..., bins : 2 * bins].sin()
    return torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=-1)


Function = Callable[..., Any]
Backend = str | Callable[..., Any] | None


class Functions:
    """The functions above, compiled by ``torch.compile`` with ``backend``; None: not compiled.

    They are specialised on the number of channels where ``is_static``: a division by a known number is cheaper.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.snake = self._prepare(snake, True)
        self.add_and_snake = self._prepare(add_and_snake, True)
        self.add_and_leak = self._prepare(add_and_leak, True)
        self.gather_mel = self._prepare(gather_mel)
        self.polar_spectrum = self._prepare(polar_spectrum)

    def _prepare(self, function: Function, is_static: bool = False) -> Function:
        if self._backend is None:
            return function
        compiled: Function = torch.compile(function, dynamic=True, fullgraph=True, backend=self._backend)
        if not is_static:
            return compiled

        def call(*arguments: Tensor | list[Tensor]) -> Any:
            for argument in arguments:
                for tensor in argument if isinstance(argument, list) else [argument]:
                    if tensor.ndim == 3:
                        torch._dynamo.mark_static(tensor, 2)
            return compiled(*arguments)

        return call
