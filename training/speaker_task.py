"""Training of the speaker encoder: which voice speaks, with an additive angular margin (Deng et al. 2019, ArcFace).

Convolutions with ReLU over the Kaldi filter bank, mean and deviation over time, one matrix: the network that
``scripts/_onnx_models.speaker_encoder_model`` writes as ``campplus.onnx``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.voice.features import KALDI_MEL_BINS
from training.corpus_data import Corpus, CropSampler
from training.features import fbank_16k, resample
from training.loop import adamw, update
from training.sizes import Sizes

CROP_TOKENS = 50
SPEEDS = (0.8, 0.87, 0.94, 1.0, 1.07, 1.15, 1.25)  # each is another speaker: the same recording with other pitch and formants
_MARGIN, _SCALE = 0.2, 30.0
_POOLING_EPSILON = 1e-5


class SpeakerNetwork(nn.Module):
    """fbank [B, T, 80] -> [B, size]."""

    def __init__(self, width: int, layers: int, size: int) -> None:
        super().__init__()
        widths = [KALDI_MEL_BINS] + [width] * (layers + 1)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, 5, padding=2, bias=False) for before, after in zip(widths, widths[1:], strict=False)
        )
        self.projection = nn.Parameter(torch.randn(2 * width, size) / (2 * width) ** 0.5)

    def forward(self, features: Tensor) -> Tensor:
        x = features.transpose(1, 2)
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        mean = x.mean(2)
        deviation = (x - mean[:, :, None]).square().mean(2).add(_POOLING_EPSILON).sqrt()
        return torch.cat([mean, deviation], dim=1) @ self.projection


class SpeakerTask:
    name = "speaker"
    warmup_steps = 100

    def __init__(self, corpus: Corpus, sizes: Sizes, voices: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        size = sizes.checkpoint.flow.spk_embed_dim
        self.network = SpeakerNetwork(sizes.speaker_width, sizes.speaker_layers, size).to(corpus.device)
        self.centres = nn.Linear(size, voices * len(SPEEDS), bias=False).to(corpus.device)
        self.total_steps, self._rows = sizes.plan.speaker_steps, sizes.plan.speaker_rows
        self._corpus, self._sampler = corpus, CropSampler(corpus, seed)
        self.modules: Mapping[str, nn.Module] = {"network": self.network, "centres": self.centres}
        parameters = [*self.network.parameters(), *self.centres.parameters()]
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"adam": adamw(parameters, 2e-3, (0.9, 0.98), 0.01)}

    def step(self, number: int) -> dict[str, Tensor]:
        speed = number % len(SPEEDS)
        first, voices = self._sampler.draw(self._rows, CROP_TOKENS)
        rate = round(AUDIO_FORMAT.sample_rate * SPEEDS[speed] / 100) * 100
        with torch.no_grad():
            waveform = resample(_recorded(self._corpus.waveforms(first, CROP_TOKENS)), rate, REFERENCE_SAMPLE_RATE)
            features = fbank_16k(waveform)
        labels = voices * len(SPEEDS) + speed
        cosines = F.linear(F.normalize(self.network(features)), F.normalize(self.centres.weight))
        angles = cosines.gather(1, labels[:, None]).clamp(-0.999, 0.999).acos()
        scores = cosines.scatter(1, labels[:, None], (angles + _MARGIN).cos()) * _SCALE
        loss = F.cross_entropy(scores, labels)
        update(loss, self.optimizers["adam"])
        return {"margin": loss.detach(), "right": (cosines.argmax(1) == labels).float().mean()}


def _recorded(waveform: Tensor) -> Tensor:
    """Another level and some noise, as of another microphone."""
    rows = (len(waveform), 1)
    gain = 10 ** torch.empty(rows, device=waveform.device).uniform_(-0.7, 0.3)
    noise = 10 ** -torch.empty(rows, device=waveform.device).uniform_(2.5, 4.5)
    return gain * waveform + noise * torch.randn_like(waveform)
