"""Incremental, batched causal vocoder. In: new mel frames of many sessions. Out: one waveform piece per session. Called by ``token2wav``.

A call computes the new frames alone and keeps what its layers need to go on, so the pieces of a session joined are one call over the whole
mel: there are no joints to fade. Audio is final up to 4 frames and 4 samples before the last known frame::

    f0 and source     [================================]  (T - 3 frames)
    decoder           [=============================]     (T - 4 frames)
    audio             [============================]      480 (T - 4) - 4 samples; all of them with the last hop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.checkpoints.config import CausalVocoderConfig
from bistream.config import RuntimeConfig
from bistream.gpu.device import resolve_device
from bistream.gpu.precision import exact_float32
from bistream.gpu.steps import Steps, finish, tiles
from bistream.mel2wav.causal.hop_plan import CausalPlan, advance, plan_call
from bistream.mel2wav.causal.layers import LayerMemory
from bistream.mel2wav.causal.network import CausalHiFT, Signal
from bistream.mel2wav.causal.state import CausalState
from bistream.mel2wav.causal.weights import load_hift
from bistream.mel2wav.frames import SAMPLES_PER_MEL_FRAME
from bistream.mel2wav.grouping import group_similar
from bistream.mel2wav.stage import OFFLINE_PIECE_FRAMES, VocoderHop
from bistream.types import FloatArray


@dataclass(frozen=True)
class _Row:
    """One session in a call."""

    state: CausalState
    mel: Tensor  # [80, N], from the session's first frame that is not decoded on
    plan: CausalPlan


class CausalVocoderStage:
    """All sessions share the weights; each has a ``CausalState``. Calls must not overlap (one worker thread).

    noise: per sample of a session's speech, merged over the harmonics (``CausalSource.merge_noise``), float32 [N]; later samples take it
    from its beginning again. network: None reads that of the model directory.
    """

    joins_exactly = True

    def __init__(self, config: RuntimeConfig, sizes: CausalVocoderConfig, noise: Tensor, network: CausalHiFT | None = None) -> None:
        self.device = resolve_device(config.device)
        self.hift = network or load_hift(config.model_dir, sizes, self.device)
        self.noise = noise.to(self.device)
        self._look_right = sizes.conv_pre_look_right
        self._f0_look_right = sizes.f0_look_right
        self._state_sizes = self._measure_state()

    @property
    def slots(self) -> tuple[int, int] | None:
        """As ``VocoderStage.slots``: sessions are bounded by nothing here."""
        return None

    def open(self, seed: int) -> CausalState:
        """State of a new session. The reference's noise is the same in every utterance: seed changes nothing."""
        layers, f0_layers = self._state_sizes
        sizes = self.hift.config
        return CausalState(
            mel=torch.zeros(sizes.in_channels, 0, device=self.device),
            source=torch.zeros(self.hift.source_samples_before, device=self.device),
            layers=torch.zeros(layers, device=self.device),
            f0_layers=torch.zeros(f0_layers, dtype=torch.float64, device=self.device),
            cycles=torch.zeros(sizes.nb_harmonics + 1, dtype=torch.float64, device=self.device),
        )

    @torch.inference_mode()
    def hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        """One waveform piece (float32 [N], N possibly 0) per hop, in order; a session occurs at most once."""
        with exact_float32():
            return self._hop(hops)

    def _hop(self, hops: Sequence[VocoderHop]) -> list[FloatArray]:
        waveforms: list[FloatArray] = [np.zeros(0, np.float32)] * len(hops)
        rows = [self._row(hop) for hop in hops]
        due = [index for index, row in enumerate(rows) if row.plan.pitched]
        for group in group_similar([rows[index].plan.pitched for index in due]):
            members = [due[position] for position in group]
            self._extend_source([rows[index] for index in members])
        due = [index for index, row in enumerate(rows) if row.plan.decoded]
        for group in group_similar([rows[index].plan.decoded for index in due]):
            members = [due[position] for position in group]
            for index, piece in zip(members, self._decode([rows[index] for index in members]), strict=True):
                waveforms[index] = piece
        for row in rows:
            row.state.mel = row.mel[:, row.plan.decoded :].clone()
            advance(row.state, row.plan)
            row.state.finalized |= row.plan.ends
        return waveforms

    def synthesize(self, mel: Tensor, seed: int, speed: float = 1.0) -> FloatArray:
        """Offline: mel [80, T] -> waveform [480 T']. speed stretches the mel linearly, T' = floor(T / speed), as upstream does."""
        with torch.inference_mode():
            return finish(self.synthesis(mel, seed, speed))

    def synthesis(self, mel: Tensor, seed: int, speed: float = 1.0) -> Steps[FloatArray]:
        """``synthesize`` in steps, between which hops may run. Run it in inference mode."""
        mel = mel.to(self.device, torch.float32)
        if speed != 1.0:
            mel = F.interpolate(mel[None], size=int(mel.shape[1] / speed), mode="linear")[0]
        frames, state, pieces = mel.shape[1], self.open(seed), []
        for piece in tiles(frames, OFFLINE_PIECE_FRAMES[self.device.type]):
            pieces += self.hop([VocoderHop(state, mel[:, piece], finalize=piece.stop == frames)])
            yield
        return np.concatenate(pieces)

    def _row(self, hop: VocoderHop) -> _Row:
        state = hop.state
        assert isinstance(state, CausalState) and not state.closed and not state.finalized
        mel = torch.cat([state.mel, hop.mel.to(self.device, torch.float32)], dim=1)
        return _Row(state, mel, plan_call(state, hop.mel.shape[1], hop.finalize, self._look_right, self._f0_look_right))

    def _extend_source(self, rows: Sequence[_Row]) -> None:
        """Compute f0 and source of the new frames and append them to the states."""
        size = max(row.plan.pitched for row in rows)
        mel = _stack([row.mel[:, row.plan.ahead :] for row in rows], size + self._f0_look_right)
        frames = self._integers([row.plan.pitched for row in rows])
        memory = LayerMemory(torch.stack([row.state.f0_layers for row in rows]), frames)
        f0 = self.hift.f0_predictor(mel, memory).float()
        place = self._integers([row.plan.first_pitched for row in rows])[:, None] * SAMPLES_PER_MEL_FRAME
        noise = self.noise[(place + torch.arange(size * SAMPLES_PER_MEL_FRAME, device=self.device)) % len(self.noise)]
        source, cycles = self.hift.m_source(f0, noise, torch.stack([row.state.cycles for row in rows]))
        kept = memory.kept()
        for index, row in enumerate(rows):
            row.state.source = torch.cat([row.state.source, source[index, : row.plan.pitched * SAMPLES_PER_MEL_FRAME]])
            row.state.cycles = cycles[index, :, row.plan.pitched - 1].clone()
            row.state.f0_layers = kept[index].clone()

    def _decode(self, rows: Sequence[_Row]) -> list[FloatArray]:
        hift, size = self.hift, max(row.plan.decoded for row in rows)
        signal = Signal(
            frames=self._integers([row.plan.decoded for row in rows]),
            starts=self._integers([row.plan.starts for row in rows]).bool(),
            ends=self._integers([row.plan.ends for row in rows]).bool(),
        )
        memory = LayerMemory(torch.stack([row.state.layers for row in rows]), signal.frames)
        mel = _stack([row.mel for row in rows], size + self._look_right)
        audio = hift.decode(mel, self._source_window(rows, size, signal), signal, memory)
        kept, on_host = memory.kept(), audio.cpu().numpy()  # the only wait for the device
        pieces = []
        for index, row in enumerate(rows):
            row.state.layers = kept[index].clone()
            row.state.source = row.state.source[row.plan.decoded * SAMPLES_PER_MEL_FRAME :].clone()
            begin, end = row.plan.samples(hift.unfinished_samples)
            pieces.append(on_host[index, hift.first_sample + begin : hift.first_sample + end].copy())
        return pieces

    def _source_window(self, rows: Sequence[_Row], size: int, signal: Signal) -> Tensor:
        """What ``CausalHiFT.decode`` reads of the source, reflected at the ends of a signal."""
        before, after = self.hift.source_samples_before, self.hift.source_samples_after
        samples = size * SAMPLES_PER_MEL_FRAME
        known = _stack([row.state.source for row in rows], before + samples + after)
        position = torch.arange(-before, samples + after, device=self.device).expand(len(rows), -1)
        position = self.hift.reflected(position, signal)
        return known.gather(1, (position + before).clamp(0, known.shape[1] - 1))

    @torch.inference_mode()
    def _measure_state(self) -> tuple[int, int]:
        """Numbers that the layers of the decoder, and those of the f0 predictor, keep between calls."""
        hift, one = self.hift, self._integers([1])
        bins = hift.config.in_channels
        layers, f0_layers = LayerMemory(None, one), LayerMemory(None, one)
        hift.f0_predictor(torch.zeros(1, bins, 1 + self._f0_look_right, device=self.device), f0_layers)
        window = hift.source_samples_before + SAMPLES_PER_MEL_FRAME + hift.source_samples_after
        mel, source = (torch.zeros(1, *shape, device=self.device) for shape in ((bins, 1 + self._look_right), (window,)))
        hift.decode(mel, source, Signal(one, one.bool(), one.bool()), layers)
        return layers.kept().shape[1], f0_layers.kept().shape[1]

    def _integers(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)


def _stack(rows: Sequence[Tensor], size: int) -> Tensor:
    """The first ``size`` positions of each row [..., N], zeros behind its end."""
    return torch.stack([F.pad(row, (0, max(0, size - row.shape[-1])))[..., :size] for row in rows])
