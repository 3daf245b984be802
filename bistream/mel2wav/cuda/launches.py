"""The whole vocoder for one bucket: the sequence of kernels that a graph records. Called by ``runner.CudaVocoderStage``.

In: ``meta`` int32 [rows, META_NUMBERS], new mel frames ``new_mel`` [bins, columns], the state of the sessions in their slots.
Out: ``out`` float32, the due audio, rows concatenated; the next call's state in the slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bistream.mel2wav.cuda import kernels_fourier, kernels_resampling, kernels_source, kernels_state
from bistream.mel2wav.cuda.batch import FRAME_GAP, Rate, RateField
from bistream.mel2wav.cuda.launches_convolution import Area, SumLaunch, Use
from bistream.mel2wav.cuda.memory import MEL_WIDTH, Workspace, capacity_of
from bistream.mel2wav.cuda.tuning import resampling_tile
from bistream.mel2wav.cuda.weights import F0_SCALE, Conv, StageWeights, VocoderWeights
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES, VOCODER_OVERLAP_SAMPLES
from bistream.mel2wav.hift import HiFT
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.sizes import MEL_BINS, padded_width, spectrum_width
from bistream.mel2wav.slotted import STATE_FRAMES, Slots

_LAST_LEAKY_SLOPE = 0.01
_MAX_MAGNITUDE = 100.0
# Slots of a stage: x plus the source; per block: activations, hidden values between its convolutions, its own residual stream.
_X, _ACTIVES, _HIDDENS, _STREAMS = 0, (1, 2, 3), (4, 5, 6), (7, 8, 9)
_UP = _STREAMS[0]  # upsampled x, until the blocks begin


@dataclass(frozen=True)
class _Rows:
    """First positions of rows: row * ``row`` + frames before it * ``frame`` + ``offset``."""

    rate: Rate
    row: int
    frame: int
    offset: int

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        return self.rate.rate, self.rate.extra, self.row, self.frame, self.offset


def _packed(rate: Rate) -> _Rows:
    """Rows as ``kernels_convolution`` expects them."""
    return _Rows(rate, rate.gap, rate.rate, rate.gap)


class VocoderCall:
    """Launches for one bucket."""

    def __init__(
        self, hift: HiFT, weights: VocoderWeights, slots: Slots, workspace: Workspace, bucket: Bucket, fade_in: Tensor, fade_out: Tensor,
        noise_gain: Tensor, dependent_launch: bool = True,
    ) -> None:  # fmt: skip
        self.hift = hift
        self.config = hift.config
        self.weights = weights
        self.slots = slots
        self.space = workspace
        self.bucket = bucket
        self.fades = (fade_in, fade_out)
        self.noise_gain = noise_gain
        self.dependent_launch = dependent_launch
        self.meta = workspace.meta[: bucket.rows]
        gpu: Any = torch.cuda.get_device_properties(workspace.meta.device)
        self._shared = int(gpu.shared_memory_per_block_optin)
        self.rate = math.prod(self.config.upsample_rates)
        self.rates = workspace.rates
        self._spectrum = _Rows(Rate(self.rate, 1, 0), bucket.frames * self.rate + 1, 0, 0)
        self._capacities = [capacity_of(rate, bucket) for rate in self.rates]
        begins = [sum(self._capacities[:index]) for index in range(len(self.rates))]
        self._reals = [workspace.real[begin : begin + count] for begin, count in zip(begins, self._capacities, strict=True)]
        numbers = np.zeros((len(self.rates), len(RateField)), np.int32)
        numbers[:, RateField.RATE] = [rate.rate for rate in self.rates]
        numbers[:, RateField.EXTRA] = [rate.extra for rate in self.rates]
        numbers[:, RateField.GAP] = [rate.gap for rate in self.rates]
        numbers[:, RateField.BEGIN] = begins
        self._rate_numbers = torch.from_numpy(numbers).to(workspace.meta.device)
        self._plan_frames()
        self._sources: list[tuple[Area, list[SumLaunch]]] = []
        self._blocks: list[list[SumLaunch]] = []
        for index, stage in enumerate(weights.stages):
            self._plan_stage(index + 1, stage)

    def launch(self) -> None:
        """Queue everything on the current stream."""
        self._gather()
        self._source()
        self._decode()
        self._finish()

    def _area(self, memory: Tensor, index: int, channels: int) -> Area:
        """The part of ``memory`` that holds whole slots of ``rates[index]``."""
        capacity = self._capacities[index]
        slots = memory.numel() // (capacity * channels)
        view = memory.view(-1)[: slots * capacity * channels].view(-1, channels)
        return Area(view, capacity, self._reals[index], self.space.meta[-1, index : index + 1])

    def _plan_frames(self) -> None:
        """f0 predictor and the first convolution of the decoder."""
        space, config = self.space, self.config
        mel = self._area(space.mel_parts, 0, MEL_WIDTH)
        source = mel
        self._f0: list[SumLaunch] = []
        for index, sums in enumerate(self.weights.f0):
            target = self._area(space.f0_parts, 0, padded_width(config.f0_channels))
            read = (0, 1) if index == 0 else ((2, 3) if index % 2 == 0 else (0, 1))
            write = (0, 1) if index % 2 == 0 else (2, 3)
            uses = [[Use(read[0], out=write[0], actives=(write[1],)), Use(read[1])]]
            self._f0.append(self._sum(sums, source, target, uses, "elu", 1.0 / F0_SCALE))
            source = target
        self._f0_rows = source.memory[write[0] * source.capacity :]
        stage_in = self._area(space.stage_in, 0, padded_width(config.base_channels))
        self._pre = self._sum(self.weights.pre, mel, stage_in, [[Use(0, out=0)]], "leaky", slope=config.lrelu_slope)

    def _plan_stage(self, index: int, stage: StageWeights) -> None:
        """Launches of the residual blocks: the source's, the last of which adds ``up`` and the others' activations, then the others."""
        config, count = self.config, len(self.config.resblock_kernel_sizes)
        channels = padded_width(config.base_channels // 2**index)
        area, stage_in = self._area(self.space.slots, index, channels), self._area(self.space.stage_in, index, channels)
        launches = []
        for layer, (first, second) in enumerate(stage.source_pairs):
            is_end = layer == len(stage.source_pairs) - 1
            launches.append(self._sum(first, area, area, [[Use(_ACTIVES[0], actives=_HIDDENS[:1])]]))
            residuals, actives = ((_X, _UP), _ACTIVES[:count]) if is_end else ((_X,), _ACTIVES[:1])
            launches.append(self._sum(second, area, area, [[Use(_HIDDENS[0], residuals, _X, actives)]]))
        self._sources.append((area, launches))
        launches, streams = [], [_X] * count
        slope = _LAST_LEAKY_SLOPE if index == len(self.rates) - 1 else config.lrelu_slope
        for first, second, blocks in stage.layers:
            launches.append(self._sum(first, area, area, [[Use(_ACTIVES[block], actives=(_HIDDENS[block],))] for block in blocks]))
            uses = [Use(_HIDDENS[block], (streams[block],), _STREAMS[block], (_ACTIVES[block],)) for block in blocks]
            if first is stage.layers[-1][0]:
                launches.append(
                    self._sum(second, area, stage_in, [[replace(use, out=0, actives=()) for use in uses]], "leaky", 1.0 / count, slope)
                )
            else:
                launches.append(self._sum(second, area, area, [[use] for use in uses]))
            for block in blocks:
                streams[block] = _STREAMS[block]
        self._blocks.append(launches)

    def _gather(self) -> None:
        space, rows, frames = self.space, self.bucket.rows, self.bucket.frames
        kernels_state.gather_mel[(-(-(frames + 2 * FRAME_GAP) // 8), rows)](
            self.slots.mel, space.new_mel, space.new_mel.shape[1], self.meta, space.mel, space.mel_parts, frames, self._capacities[0],
            STATE=STATE_FRAMES, BINS=MEL_BINS, WIDTH=MEL_WIDTH, GAP=FRAME_GAP, TILE=8, **self._options(4),
        )  # fmt: skip
        most = frames * self.rate + 1 + 2 * self.rates[-1].gap
        kernels_state.mark_real[(-(-most // 1024), rows, len(self.rates))](
            self.meta, space.real, self._rate_numbers, TILE=1024, **self._options(4)
        )

    def _source(self) -> None:
        """f0 of the mel, phases, and the source signal; the phases of the last emitted frames go to their slots."""
        rows, frames, space, source, config = self.bucket.rows, self.bucket.frames, self.space, self.hift.m_source, self.config
        harmonics = config.nb_harmonics + 1
        for launch in self._f0:
            launch.launch()
        classifier = self.hift.f0_predictor.classifier
        kernels_source.classify_f0[(-(-frames // 8), rows)](
            self._f0_rows, self.weights.classifier, classifier.bias, self.meta, space.f0, frames, self._capacities[0],
            WIDTH=padded_width(config.f0_channels), GAP=FRAME_GAP, TILE=8, **self._options(4),
        )  # fmt: skip
        kernels_source.follow_phase[(harmonics, rows)](
            space.f0, source.overtones, self.meta, self.slots.phase, space.advance, space.phase, frames, 1.0 / config.sampling_rate,
            HARMONICS=harmonics, SAMPLES=SAMPLES_PER_MEL_FRAME, WIDTH=max(128, 1 << (frames - 1).bit_length()), **self._options(4),
        )  # fmt: skip
        kernels_source.make_source[(frames, rows)](
            space.f0, space.advance, space.phase, source.l_linear.weight, source.l_linear.bias, self.noise_gain, self.slots.source,
            self.meta, space.source, frames, config.nsf_alpha, config.nsf_sigma, config.nsf_voiced_threshold, HARMONICS=harmonics,
            STATE=STATE_FRAMES, SAMPLES=SAMPLES_PER_MEL_FRAME, WIDTH=512, **self._options(4),
        )  # fmt: skip
        kernels_fourier.transform[(-(-(frames * self.rate + 1) // 64), rows)](
            space.source, self.weights.forward_basis, self.meta, space.spectrum, frames * SAMPLES_PER_MEL_FRAME, frames * self.rate + 1,
            SAMPLES=SAMPLES_PER_MEL_FRAME, HOP=config.istft_hop_len, SPAN=config.istft_n_fft, WIDTH=spectrum_width(config), TILE=64,
            **self._options(4),
        )  # fmt: skip

    def _decode(self) -> None:
        space, in_rows = self.space, _packed(self.rates[0])
        self._pre.launch()
        for index, stage in enumerate(self.weights.stages):
            out_rows = _packed(self.rates[index + 1])
            area, launches = self._sources[index]
            self._convolve(stage.up, space.stage_in, in_rows, out_rows, area.slot(_UP), repeats_first=out_rows.rate.extra > 0)
            self._convolve(
                stage.source_down,
                space.spectrum,
                self._spectrum,
                out_rows,
                area.slot(_X),
                active=(stage.source_alpha, area.slot(_ACTIVES[0])),
            )
            for launch in [*launches, *self._blocks[index]]:
                launch.launch()
            in_rows = out_rows
        post, span = self.weights.post, self.config.istft_n_fft
        self._convolve(post, space.stage_in, in_rows, self._spectrum, space.windows, span=span)

    def _finish(self) -> None:
        """Windows to audio, due audio to ``out``, and the next call's state to the slots."""
        rows, frames, config, fourier, space = self.bucket.rows, self.bucket.frames, self.config, self.hift.fourier, self.space
        kernels_fourier.overlap_add[(-(-frames * SAMPLES_PER_MEL_FRAME // 1024), rows)](
            space.windows, fourier.interior, fourier.left_gain, fourier.right_gain, *self.fades, self.slots.withheld, self.meta,
            space.audio, frames * self.rate + 1, frames * SAMPLES_PER_MEL_FRAME, config.audio_limit,
            SAMPLES=SAMPLES_PER_MEL_FRAME, HOP=config.istft_hop_len, SPAN=config.istft_n_fft, FADE=VOCODER_OVERLAP_SAMPLES, TILE=1024,
            **self._options(4),
        )  # fmt: skip
        kernels_state.keep_state[(frames, rows)](
            space.mel, space.source, space.audio, self.meta, self.slots.mel, self.slots.source, self.slots.withheld, space.out, frames,
            STATE=STATE_FRAMES, OVERLAP_FRAMES=VOCODER_OVERLAP_FRAMES, BINS=MEL_BINS, BIN_WIDTH=128,
            SAMPLES=SAMPLES_PER_MEL_FRAME, WIDTH=512, **self._options(4),
        )  # fmt: skip

    def _convolve(
        self, conv: Conv, x: Tensor, in_rows: _Rows, out_rows: _Rows, out: Tensor, active: tuple[Tensor, Tensor] | None = None,
        repeats_first: bool = False, span: int = 0,
    ) -> None:  # fmt: skip
        """active: alphas of the snake, and memory for its result. span: samples of a window; the features are its spectrum."""
        frames, rows = self.bucket.frames, self.bucket.rows
        gap = out_rows.rate.gap if active is not None else 0
        size = in_rows if conv.up else out_rows
        positions = frames * size.rate.rate + size.rate.extra + (1 if conv.up else 2 * gap)
        tile = resampling_tile(rows * frames * out_rows.rate.rate, conv.features, conv.channels, self._shared, span > 0)
        alpha, target = active if active is not None else (self.weights.inverse_basis, out)
        kernels_resampling.convolve[(-(-positions // tile.positions), len(conv.weight) // tile.block, rows)](
            x, conv.weight, conv.bias, self.meta, alpha, out, target, *in_rows.numbers, *out_rows.numbers, conv.taps, conv.dilation,
            conv.stride, conv.pad, conv.crop, _MAX_MAGNITUDE, CHANNELS=conv.channels, FEATURES=conv.features, UP=conv.up,
            REFLECT=int(repeats_first), GAP=gap, SPAN=span, TILE=tile.positions, BLOCK=tile.block, STEP=tile.step, STAGES=tile.stages,
            **self._options(tile.warps),
        )  # fmt: skip

    def _sum(self, *arguments: Any, **options: Any) -> SumLaunch:
        return SumLaunch(*arguments, **(options | {"dependent_launch": self.dependent_launch}))

    def _options(self, warps: int) -> dict[str, Any]:
        return {"PDL": self.dependent_launch, "num_warps": warps, "launch_pdl": self.dependent_launch}
