"""Device memory that the calls of all buckets share. The state of sessions is in ``slotted.Slots``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bistream.checkpoints.config import VocoderConfig
from bistream.mel2wav.cuda.batch import FRAME_GAP, META_NUMBERS, Rate
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME
from bistream.mel2wav.hift import HiFT
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.sizes import MEL_BINS, MOST_BLOCKS, padded_width, spectrum_width, stage_gap

MEL_WIDTH = padded_width(MEL_BINS)
STAGE_SLOTS = 1 + 3 * MOST_BLOCKS  # slots of a stage's activations, see ``launches``
_ROUND = 512  # positions; a multiple of every tile size, also of pairs of positions


def rates_of(config: VocoderConfig) -> list[Rate]:
    """Rates of the mel and after each upsampling stage; the last one has one extra position, like the spectrum."""
    stages = [math.prod(config.upsample_rates[: stage + 1]) for stage in range(len(config.upsample_rates))]
    return [Rate(1, 0, FRAME_GAP), *(Rate(rate, int(rate == stages[-1]), stage_gap(config)) for rate in stages)]


def capacity_of(rate: Rate, bucket: Bucket) -> int:
    """Positions of memory for a full bucket at a rate, a multiple of every tile size."""
    return -(-(rate.positions(bucket.rows * bucket.frames, bucket.rows) + 1) // _ROUND) * _ROUND


class Workspace:
    """Memory that the calls of all buckets share."""

    def __init__(self, hift: HiFT, buckets: tuple[Bucket, ...], dtype: torch.dtype, device: torch.device) -> None:
        config = hift.config
        frames, rows = max(bucket.rows * bucket.frames for bucket in buckets), max(bucket.rows for bucket in buckets)
        samples = frames * SAMPLES_PER_MEL_FRAME
        rate = math.prod(config.upsample_rates)
        self.rates = rates_of(config)
        widths = [padded_width(config.base_channels // 2**stage) for stage in range(len(self.rates))]
        positions = [max(capacity_of(rate, bucket) for bucket in buckets) for rate in self.rates]
        most = max(width * count for width, count in zip(widths, positions, strict=True))

        def half(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.new_mel = torch.zeros(MEL_BINS, frames, device=device)
        self.meta = torch.zeros(rows + 1, META_NUMBERS, dtype=torch.int32, device=device)
        self.real = torch.zeros(sum(positions), dtype=torch.int8, device=device)
        self.mel = torch.zeros(frames, MEL_BINS, device=device)
        self.mel_parts = half(2 * positions[0], MEL_WIDTH)
        self.f0_parts = half(4 * positions[0], padded_width(config.f0_channels))
        self.f0 = torch.zeros(frames, device=device)
        self.advance, self.phase = (torch.zeros(frames * (config.nb_harmonics + 1), device=device) for _ in range(2))
        self.source = torch.zeros(samples, device=device)
        self.spectrum = half(frames * rate + rows, spectrum_width(config))
        self.stage_in = half(most)
        self.slots = half(STAGE_SLOTS * most)
        self.windows = torch.zeros(frames * rate + rows, config.istft_n_fft, device=device)
        self.audio = torch.zeros(samples, device=device)
        self.out = torch.zeros(samples, device=device)
