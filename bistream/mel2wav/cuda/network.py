"""The whole vocoder for one bucket: the kernels in order. What a graph records. Called by ``stage.CudaVocoderStage``.

In: ``meta`` int32 [rows, 16], new mel frames ``new_mel`` [bins, columns], the state of the sessions in their slots.
Out: ``out`` float32, the audio that is due, rows after one another; the next call's state in the slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bistream.mel2wav.cuda import kernels_conv, kernels_signal
from bistream.mel2wav.cuda.rows import META_NUMBERS, Bucket
from bistream.mel2wav.cuda.weights import Block, Conv, StageWeights, VocoderWeights
from bistream.mel2wav.hift import HiFT, SourceStart
from bistream.rates import MEL_BINS, SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES, VOCODER_OVERLAP_SAMPLES

_LAST_LEAKY_SLOPE = 0.01
_MAX_MAGNITUDE = 100.0
_MAX_BLOCKS = 3  # residual blocks of a stage
_WIDE_POSITIONS = 30_000  # positions of a call from which on larger tiles pay


class Slots:
    """State of all sessions, one slot each: ``state_frames`` kept frames of mel and source, withheld audio, phases."""

    def __init__(self, count: int, state_frames: int, harmonics: int, device: torch.device) -> None:
        self.state_frames = state_frames
        self.mel = torch.zeros(count, state_frames, MEL_BINS, device=device)
        self.source = torch.zeros(count, state_frames * SAMPLES_PER_MEL_FRAME, device=device)
        self.withheld = torch.zeros(count, VOCODER_OVERLAP_SAMPLES, device=device)
        self.phase = torch.zeros(count, harmonics, dtype=torch.float64, device=device)


class Workspace:
    """Memory that the calls of all buckets share; ``frames``: rows * frames of the largest one, ``rows`` likewise."""

    def __init__(self, hift: HiFT, frames: int, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        config = hift.config
        samples = frames * SAMPLES_PER_MEL_FRAME
        rate = math.prod(config.upsample_rates)
        channels = [config.base_channels // 2 ** (stage + 1) for stage in range(len(config.upsample_rates))]
        rates = [math.prod(config.upsample_rates[: stage + 1]) for stage in range(len(config.upsample_rates))]
        most = max(width * (frames * each + rows) for width, each in zip(channels, rates, strict=True))

        def half(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.new_mel = torch.zeros(MEL_BINS, frames, device=device)
        self.meta = torch.zeros(rows, META_NUMBERS, dtype=torch.int32, device=device)
        self.mel = torch.zeros(frames, MEL_BINS, device=device)
        self.mel_half = half(frames, MEL_BINS)
        self.f0 = [torch.zeros(frames, config.f0_channels, device=device) for _ in range(2)]
        self.source = torch.zeros(samples, device=device)
        self.spectrum = half(frames * rate + rows, 32)
        self.stage_in, self.up, self.hidden, self.x, self.total = (half(most) for _ in range(5))
        self.active = [half(most) for _ in config.resblock_kernel_sizes]
        self.post = torch.zeros(frames * rate + rows, 32, device=device)
        self.audio = torch.zeros(samples, device=device)
        self.out = torch.zeros(samples, device=device)


@dataclass(frozen=True)
class _Rate:
    """Positions per frame, and one more at the end (STFT frames)."""

    rate: int
    extra: int


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
        self.rate = math.prod(self.config.upsample_rates)

    def launch(self) -> None:
        """Queue everything on the current stream."""
        rows, frames = self.bucket.rows, self.bucket.frames
        self._gather()
        self._source()
        self._decode()
        config, fourier, space = self.config, self.hift.fourier, self.space
        tile = 32
        kernels_signal.invert[(-(-frames * self.rate // tile), rows)](
            space.post, self.weights.inverse_basis, fourier.interior, fourier.left_gain, fourier.right_gain, *self.fades,
            self.slots.withheld, self.meta, space.audio, frames * self.rate + 1, frames * SAMPLES_PER_MEL_FRAME, config.audio_limit,
            _MAX_MAGNITUDE,
            SAMPLES=SAMPLES_PER_MEL_FRAME, HOP=config.istft_hop_len, SPAN=config.istft_n_fft, BINS=config.istft_n_fft // 2 + 1, POST=32,
            FADE=VOCODER_OVERLAP_SAMPLES, TILE=tile, **self._options(4),
        )  # fmt: skip
        kernels_signal.keep_state[(frames, rows)](
            space.mel, space.source, space.audio, self.meta, self.slots.mel, self.slots.source, self.slots.withheld, space.out, frames,
            STATE=self.slots.state_frames, OVERLAP_FRAMES=VOCODER_OVERLAP_FRAMES, BINS=MEL_BINS, BIN_WIDTH=128,
            SAMPLES=SAMPLES_PER_MEL_FRAME, WIDTH=512, **self._options(4),
        )  # fmt: skip

    def _gather(self) -> None:
        space, frames = self.space, self.bucket.frames
        kernels_signal.gather_mel[(-(-frames // 8), self.bucket.rows)](
            self.slots.mel, space.new_mel, space.new_mel.shape[1], self.meta, space.mel, space.mel_half, frames,
            STATE=self.slots.state_frames, BINS=MEL_BINS, WIDTH=128, TILE=8, **self._options(4),
        )  # fmt: skip

    def _source(self) -> None:
        """f0 of the mel, phases, and the source signal; the phases of the last emitted frames go to their slots."""
        rows, frames, space, source = self.bucket.rows, self.bucket.frames, self.space, self.hift.m_source
        x = space.mel
        for index, conv in enumerate(self.weights.f0):
            self._convolve(conv, x, _Rate(1, 0), _Rate(1, 0), active=("elu", None, space.f0[index % 2]), precision="tf32x3")
            x = space.f0[index % 2]
        classifier = self.hift.f0_predictor.classifier
        f0 = torch.matmul(x[: rows * frames], classifier.weight[0]).add_(classifier.bias).abs_().view(rows, frames)
        meta = self.meta.long()
        # Before anything is out the phase is zero, whoever had the slot before.
        carried = torch.where((meta[:, 4] > 0)[:, None], self.slots.phase[meta[:, 0]], 0.0)
        start = SourceStart(carried, meta[:, 3], meta[:, 6].bool(), meta[:, 1])
        advance = (f0[:, None, :] * source.overtones / self.config.sampling_rate) % 1
        phase = source.frame_phase(advance, start)
        config = self.config
        kernels_signal.make_source[(frames, rows)](
            f0, advance, phase.float(), source.l_linear.weight, source.l_linear.bias, self.noise_gain, self.slots.source, self.meta,
            space.source, frames, config.nsf_alpha, config.nsf_sigma, config.nsf_voiced_threshold, HARMONICS=config.nb_harmonics + 1,
            STATE=self.slots.state_frames, SAMPLES=SAMPLES_PER_MEL_FRAME, WIDTH=512, **self._options(4),
        )  # fmt: skip
        last = (meta[:, 11] - 1).clamp(min=0)
        kept = phase.gather(2, last[:, None, None].expand(-1, phase.shape[1], 1))[:, :, 0]
        moves = ((meta[:, 11] > meta[:, 4]) & (meta[:, 1] > 0))[:, None]
        self.slots.phase.index_copy_(0, torch.where(moves[:, 0], meta[:, 0], 0), torch.where(moves, kept, self.slots.phase[:1]))
        kernels_signal.transform[(-(-(frames * self.rate + 1) // 64), rows)](
            space.source, self.weights.forward_basis, self.meta, space.spectrum, frames * SAMPLES_PER_MEL_FRAME, frames * self.rate + 1,
            SAMPLES=SAMPLES_PER_MEL_FRAME, HOP=config.istft_hop_len, SPAN=config.istft_n_fft, WIDTH=32, TILE=64, **self._options(4),
        )  # fmt: skip

    def _decode(self) -> None:
        space, config = self.space, self.config
        coming, rate = _Rate(1, 0), 1
        self._convolve(self.weights.pre, space.mel_half, coming, coming, active=("leaky", config.lrelu_slope, space.stage_in))
        for index, stage in enumerate(self.weights.stages):
            is_last = index == len(self.weights.stages) - 1
            rate *= config.upsample_rates[index]
            here = _Rate(rate, int(is_last))
            self._convolve(stage.up, space.stage_in, coming, here, out=space.up, repeats_first=is_last)
            self._add_source(stage, here)
            self._activate(stage, here)
            slope = _LAST_LEAKY_SLOPE if is_last else config.lrelu_slope
            self._residual_blocks(stage, here, slope)
            coming = here
        self._convolve(self.weights.post, space.stage_in, coming, coming, out=space.post)

    def _add_source(self, stage: StageWeights, here: _Rate) -> None:
        """x = up + residual block of the spectrum at this rate."""
        space = self.space
        block = stage.source_block
        self._convolve(
            stage.source_down, space.spectrum, _Rate(self.rate, 1), here, out=space.x, active=("snake", block.alphas1[0], space.active[0])
        )
        self._block(block, here, space.x, space.active[0], out=space.x, add=space.up)

    def _activate(self, stage: StageWeights, here: _Rate) -> None:
        """Activations of x before each of the stage's blocks."""
        space, copies = self.space, len(stage.blocks)
        channels = stage.first_alphas.shape[1]
        size = self._size(here)
        tile = 32
        targets = [space.active[min(index, copies - 1)] for index in range(_MAX_BLOCKS)]
        kernels_conv.activate[(-(-size // tile), self.bucket.rows)](
            space.x, stage.first_alphas, self.meta, *targets, size, here.rate, here.extra,
            CHANNELS=channels, COPIES=copies, TILE=tile, **self._options(4),
        )  # fmt: skip

    def _residual_blocks(self, stage: StageWeights, here: _Rate, slope: float) -> None:
        """Mean of the blocks' results, activated, as input of what comes next. ``up`` is free by now and takes each block's x."""
        space, count = self.space, len(stage.blocks)
        for index, block in enumerate(stage.blocks):
            is_last = index == count - 1
            self._block(
                block, here, space.x, space.active[index], out=space.total, add=space.total if index else None,
                stream=space.up, final=(slope, 1.0 / count) if is_last else None,
            )  # fmt: skip

    def _block(
        self,
        block: Block,
        here: _Rate,
        x: Tensor,
        active: Tensor,
        out: Tensor,
        add: Tensor | None,
        stream: Tensor | None = None,
        final: tuple[float, float] | None = None,
    ) -> None:
        """x + the block's convolutions (+ add) to ``out``, or scaled and activated to ``stage_in``. stream: memory for x in between."""
        space = self.space
        stream = x if stream is None else stream
        for index, (conv1, conv2) in enumerate(zip(block.convs1, block.convs2, strict=True)):
            is_end = index == len(block.convs1) - 1
            self._convolve(conv1, active, here, here, active=("snake", block.alphas2[index], space.hidden))
            if not is_end:
                following = ("snake", block.alphas1[index + 1], active)
                self._convolve(conv2, space.hidden, here, here, residual=x, out=stream, active=following)
            elif final is None:
                self._convolve(conv2, space.hidden, here, here, residual=x, add=add, out=out)
            else:
                slope, scale = final
                self._convolve(conv2, space.hidden, here, here, residual=x, add=add, active=("leaky", slope, space.stage_in), scale=scale)
            x = stream

    def _convolve(
        self,
        conv: Conv,
        x: Tensor,
        coming: _Rate,
        here: _Rate,
        *,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        add: Tensor | None = None,
        active: tuple[str, Any, Tensor] | None = None,
        scale: float = 1.0,
        repeats_first: bool = False,
        precision: str = "tf32",
    ) -> None:
        """active: activation, its alphas or slope, where it goes."""
        frames, rows = self.bucket.frames, self.bucket.rows
        in_size, out_size = self._size(coming), self._size(here)
        kind, value, target = active if active is not None else ("", None, x)
        positions = in_size + 1 if conv.up else out_size
        outputs = len(conv.weight)
        wide = rows * frames * here.rate >= _WIDE_POSITIONS
        tile, block = (128, min(128, conv.features)) if wide else (64, min(64, conv.features))
        if x.dtype == torch.float32:
            tile, block = 32, min(64, conv.features)
        slope = float(value or 0.0) if kind == "leaky" else 0.0
        step = math.gcd(conv.channels, 64 if x.dtype != torch.float32 else 32)
        kernels_conv.convolve[(-(-positions // tile), outputs // block, rows)](
            x, conv.weight, conv.bias, self.meta, residual if residual is not None else x, add if add is not None else x,
            value if kind == "snake" else conv.bias, out if out is not None else x, target, scale, slope,
            in_size, out_size, coming.rate, coming.extra, here.rate, here.extra, conv.taps, conv.dilation, conv.stride, conv.pad, conv.crop,
            CHANNELS=conv.channels, FEATURES=conv.features, UP=conv.up, REFLECT=int(repeats_first), TILE=tile, BLOCK=block, STEP=step,
            STAGES=3, RESIDUAL=residual is not None,
            ADD=add is not None, STORE=out is not None, ACTIVE=kind, PRECISION=precision, **self._options(8 if tile * block > 8192 else 4),
        )  # fmt: skip

    def _size(self, rate: _Rate) -> int:
        """Positions of a row."""
        return self.bucket.frames * rate.rate + rate.extra

    def _options(self, warps: int) -> dict[str, Any]:
        return {"PDL": self.dependent_launch, "num_warps": warps, "launch_pdl": self.dependent_launch}
