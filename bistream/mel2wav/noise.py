"""Standard normal noise indexed by absolute sample position: a seed defines one endless sequence, however it is cut into calls.

So the noise of a session depends neither on its hop sizes nor on the rest of its batch, and it is the same on every device
(up to the rounding of log, sqrt and cos). Called by ``mel2wav.stage``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLES_PER_COUNTER = 4  # one Philox block is four 32-bit words, hence four normal numbers

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # Philox-4x32 constants, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def key_of_seed(seed: int) -> tuple[int, int]:
    """Low and high 32 bits of a 64-bit seed (negative seeds in two's complement)."""
    return seed & _MASK, (seed >> 32) & _MASK


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10. All words are int64 tensors holding 32-bit values, of shapes that broadcast."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]  # 64-bit products; int64 wraps, which leaves the bits correct
        x0, x1, x2, x3 = (
            (second >> 32 & _MASK) ^ x1 ^ k0,
            second & _MASK,
            (first >> 32 & _MASK) ^ x3 ^ k1,
            first & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return x0, x1, x2, x3


def _unit_interval(word: Tensor) -> Tensor:
    """The upper 24 bits of a word as float32 in (0, 1]."""
    return ((word >> 8) + 1).float() * 2.0**-24


def _box_muller(word: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    radius = (-2.0 * _unit_interval(word).log()).sqrt()
    angle = 2.0 * math.pi * _unit_interval(other)
    return radius * angle.cos(), radius * angle.sin()


def normal_noise(keys: Tensor, first_sample: Tensor, num_samples: int) -> Tensor:
    """Standard normal float32 [B, num_samples]; row b holds samples first_sample[b], first_sample[b] + 1, ... of its key.

    keys: int64 [B, 2] (``key_of_seed``). first_sample: int64 [B], multiples of ``SAMPLES_PER_COUNTER``, as is num_samples.
    """
    assert num_samples % SAMPLES_PER_COUNTER == 0
    block = torch.arange(num_samples // SAMPLES_PER_COUNTER, device=keys.device) + first_sample[:, None] // SAMPLES_PER_COUNTER
    zero = torch.zeros_like(block)
    words = philox4x32((block & _MASK, block >> 32, zero, zero), (keys[:, :1], keys[:, 1:]))
    normals = (*_box_muller(words[0], words[1]), *_box_muller(words[2], words[3]))
    return torch.stack(normals, dim=-1).flatten(1)
