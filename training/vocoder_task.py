"""Training of the vocoder: the served network (``HiFT``) on mels of the corpus, first with spectral losses, then with discriminators.

The weights are trained plain; ``export.py`` writes them as magnitude and direction. In the spectral stage the source comes from the
measured pitch, later from the predicted one, as when it is served. In the last part of the steps half of the rows are mels of the
trained flow, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.mel2wav.hift import HiFT, SourceStart
from training.corpus_data import FRAMES_PER_TOKEN, Corpus, CropSampler
from training.discriminators import Discriminators, Judged, discriminator_loss, feature_loss, generator_loss
from training.features import mel_24k, pitch
from training.loop import adamw, update
from training.sizes import Sizes

_MARGIN_TOKENS = 3  # of waveform on both sides, so that pitch and mel of a crop are those of the whole
_RESOLUTIONS = (512, 1024, 2048)
_MEL_WEIGHT, _FEATURE_WEIGHT, _SPECTRUM_WEIGHT = 15.0, 2.0, 2.0
_LATER_SPECTRUM_WEIGHT = 0.5  # beside discriminators: it wants a mean of what could be, which is too soft
_PITCH_WEIGHT = 0.01  # of Hz
_FLOW_MELS_FROM = 0.85  # of all steps
_GAN_RATE = 0.5  # of the generator's learning rate: with discriminators a high one diverges
MelMaker = Callable[[Tensor, int], Tensor]  # first tokens [B], tokens -> mel [B, 2 tokens, 80] with the recording's timing
_ASK_EVERY = 500  # steps, for a flow that was not there yet


class VocoderTask:
    name = "vocoder"

    def __init__(self, corpus: Corpus, sizes: Sizes, seed: int = 0, find_flow: Callable[[], MelMaker | None] = lambda: None) -> None:
        """find_flow: asked when its mels are due, since flow and vocoder are trained side by side."""
        torch.manual_seed(seed)
        plan = sizes.plan
        self.network = HiFT(sizes.checkpoint.vocoder).to(corpus.device)
        self.discriminators = Discriminators(sizes.discriminator_width).to(corpus.device)
        self._spectral_steps, self.total_steps = plan.vocoder_steps, plan.vocoder_steps + plan.vocoder_gan_steps
        self.warmup_steps = min(200, self.total_steps // 10)
        self._rows, self._tokens = plan.vocoder_rows, plan.vocoder_frames // FRAMES_PER_TOKEN
        self._corpus, self._sampler, self._find_flow = corpus, CropSampler(corpus, seed), find_flow
        self._flow_mels: MelMaker | None = None
        self._asked_at = -_ASK_EVERY
        self.modules: Mapping[str, nn.Module] = {"network": self.network, "discriminators": self.discriminators}
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {
            "generator": adamw(self.network.parameters(), plan.vocoder_rate, (0.8, 0.99), 0.0),
            "discriminators": adamw(self.discriminators.parameters(), 4e-4, (0.8, 0.99), 0.0),
        }

    def step(self, number: int) -> dict[str, Tensor]:
        is_spectral = number < self._spectral_steps
        mel, real, f0 = self._crop(number)
        predicted = self.network.f0(mel)
        made = self.speak(mel, f0 if is_spectral else predicted.detach())
        spectrum, mel_loss = spectral_loss(made, real), F.l1_loss(mel_24k(made), mel_24k(real))
        pitch_loss = F.l1_loss(predicted, f0)
        weight = _SPECTRUM_WEIGHT if is_spectral else _LATER_SPECTRUM_WEIGHT
        loss = weight * spectrum + _MEL_WEIGHT * mel_loss + _PITCH_WEIGHT * pitch_loss
        found = {"spectrum": spectrum.detach(), "mel": mel_loss.detach(), "pitch": pitch_loss.detach()}
        if not is_spectral:
            for group in self.optimizers["generator"].param_groups:  # set anew before every step
                group["lr"] *= _GAN_RATE
            against = discriminator_loss(self._judged(real), self._judged(made.detach()))
            update(against, self.optimizers["discriminators"], 10.0)
            self.discriminators.requires_grad_(False)
            judged = self._judged(made)
            fooled, features = generator_loss(judged), feature_loss(self._judged(real), judged)
            loss = loss + fooled + _FEATURE_WEIGHT * features
            found |= {"against": against.detach(), "fooled": fooled.detach(), "features": features.detach()}
        update(loss, self.optimizers["generator"], 10.0)
        self.discriminators.requires_grad_(True)
        return found

    def _judged(self, waveform: Tensor) -> Judged:
        """In bfloat16 on a GPU: the discriminators are most of a step."""
        with torch.autocast(waveform.device.type, torch.bfloat16, enabled=waveform.device.type == "cuda"):
            judged: Judged = self.discriminators(waveform)
        return judged

    def speak(self, mel: Tensor, f0: Tensor) -> Tensor:
        """mel [B, 80, T], f0 [B, T] -> waveform [B, 480 T], as in the middle of a stream, with random phases and noise."""
        rows, frames = f0.shape
        device, source = f0.device, self.network.m_source
        noise = torch.randn(rows, frames * self.network.samples_per_frame, device=device) * source.noise_gain()
        start = SourceStart(
            phase=torch.rand(rows, self.network.config.nb_harmonics + 1, device=device, dtype=torch.float64),
            anchor=torch.zeros(rows, dtype=torch.int64, device=device),
            starts=torch.zeros(rows, dtype=torch.bool, device=device),
            frames=torch.full((rows,), frames, device=device),
        )
        excitation, _ = source(f0, noise, start)
        return self.network.decode(mel, excitation, start.frames)

    @torch.no_grad()
    def _crop(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """mel [B, 80, T], waveform [B, 480 T], f0 [B, T]."""
        first, _ = self._sampler.draw(self._rows, self._tokens + 2 * _MARGIN_TOKENS)
        waveform = self._corpus.waveforms(first, self._tokens + 2 * _MARGIN_TOKENS)
        margin = _MARGIN_TOKENS * FRAMES_PER_TOKEN
        inside = slice(margin, margin + self._tokens * FRAMES_PER_TOKEN)
        mel, f0 = mel_24k(waveform)[:, inside], pitch(waveform)[:, inside]
        if number > _FLOW_MELS_FROM * self.total_steps and (flow_mels := self._mel_maker(number)) is not None:
            half = self._rows // 2
            mel[:half] = flow_mels(first[:half] + _MARGIN_TOKENS, self._tokens)
        size = self.network.samples_per_frame
        return mel.transpose(1, 2), waveform[:, inside.start * size : inside.stop * size], f0

    def _mel_maker(self, number: int) -> MelMaker | None:
        if self._flow_mels is None and number - self._asked_at >= _ASK_EVERY:
            self._flow_mels, self._asked_at = self._find_flow(), number
        return self._flow_mels


def spectral_loss(made: Tensor, real: Tensor) -> Tensor:
    """Log magnitude (L1) and spectral convergence at three resolutions (Yamamoto et al. 2020)."""
    losses = []
    for size in _RESOLUTIONS:
        window = torch.hann_window(size, device=made.device)
        ours, wanted = (
            torch.view_as_real(torch.stft(signal, size, size // 4, window=window, return_complex=True)).square().sum(-1).add(1e-7).sqrt()
            for signal in (made, real)
        )
        losses.append(F.l1_loss(ours.log(), wanted.log()) + torch.linalg.norm(ours - wanted) / torch.linalg.norm(wanted))
    return torch.stack(losses).mean()
