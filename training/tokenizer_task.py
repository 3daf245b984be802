"""Training of the speech tokenizer, and the codes of the whole corpus.

The served network (``S3Network``) with a small decoder on its codes: phones of 20 ms, mel (with the voice given, so that the code need
not carry it), pitch relative to the voice's mean, voicing and energy. Rounding passes gradients straight through.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.voice.features import MEL_BINS
from bistream.voice.s3_network import DIGIT_SCALE, S3Network
from training.corpus_data import Corpus, CropSampler
from training.features import log_mel_16k, mel_24k, pitch, resample
from training.loop import adamw, update
from training.phones import PHONES
from training.sizes import Sizes

CROP_TOKENS = 75
_DECODER_WIDTH = 256
_MEL_MEAN, _MEL_SCALE = -5.5, 2.5  # of log-mel in nepers, roughly


class CodeDecoder(nn.Module):
    """Digits at 25 Hz -> phones, prosody and mel at 50 Hz. Used in training alone."""

    def __init__(self, digits: int, voices: int) -> None:
        super().__init__()
        width = _DECODER_WIDTH
        self.first = nn.Conv1d(digits, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.GELU(), nn.Conv1d(width, width, 5, padding=2)) for _ in range(3))
        self.upsample = nn.ConvTranspose1d(width, width, 2, stride=2)
        self.phones = nn.Conv1d(width, len(PHONES), 3, padding=1)
        self.manner = nn.Conv1d(width, 3, 3, padding=1)  # relative log f0, voicing, energy
        self.voice = nn.Embedding(voices, width)
        self.mel = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, MEL_BINS, 3, padding=1))

    def forward(self, digits: Tensor, voices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """digits [B, T, D] -> phones [B, P, 2T], manner [B, 3, 2T], mel [B, 80, 2T]."""
        x = self.first(digits.transpose(1, 2))
        for block in self.blocks:
            x = x + block(x)
        x = F.gelu(self.upsample(x))
        return self.phones(x), self.manner(x), self.mel(x + self.voice(voices)[:, :, None])


class TokenizerTask:
    name = "tokenizer"
    warmup_steps = 100

    def __init__(self, corpus: Corpus, sizes: Sizes, voices: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.network = S3Network(sizes.tokenizer).to(corpus.device)
        self.decoder = CodeDecoder(sizes.tokenizer.digits, voices).to(corpus.device)
        self.total_steps, self._rows = sizes.plan.tokenizer_steps, sizes.plan.tokenizer_rows
        self._corpus, self._sampler = corpus, CropSampler(corpus, seed)
        self.modules: Mapping[str, nn.Module] = {"network": self.network, "decoder": self.decoder}
        parameters = [*self.network.parameters(), *self.decoder.parameters()]
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"adam": adamw(parameters, 1.5e-3, (0.9, 0.98), 0.01)}

    def step(self, number: int) -> dict[str, Tensor]:
        losses = self.losses()
        update(losses["phones"] + losses["mel"] + 0.3 * losses["manner"], self.optimizers["adam"])
        return {name: loss.detach() for name, loss in losses.items()}

    def losses(self) -> dict[str, Tensor]:
        first, voices = self._sampler.draw(self._rows, CROP_TOKENS)
        waveform = self._corpus.waveforms(first, CROP_TOKENS)
        with torch.no_grad():
            phones, mel = self._corpus.phone_frames(first, CROP_TOKENS), mel_24k(waveform).transpose(1, 2)
            manner, voiced = _manner(waveform, mel)
            heard = log_mel_16k(resample(_augmented(waveform), AUDIO_FORMAT.sample_rate, REFERENCE_SAMPLE_RATE))
        lengths = torch.full((self._rows,), heard.shape[2], device=heard.device)
        hidden, _ = self.network.encoder(heard, lengths)
        projected = self.network.quantizer["_codebook"]["project_down"](hidden).tanh() * DIGIT_SCALE  # type: ignore[index]
        digits = projected + (projected.round() - projected).detach()
        phone_scores, told, spoken = self.decoder(digits, voices)
        target = (mel - _MEL_MEAN) / _MEL_SCALE
        return {
            "phones": F.cross_entropy(phone_scores, phones),
            "mel": F.l1_loss(spoken, target),
            "manner": F.l1_loss(told[:, :1] * voiced, manner[:, :1] * voiced)
            + F.binary_cross_entropy_with_logits(told[:, 1:2], voiced)
            + F.l1_loss(told[:, 2:], manner[:, 2:]),
            "phones_right": (phone_scores.argmax(1) == phones).float().mean(),
        }


def _augmented(waveform: Tensor) -> Tensor:
    """Another level, and in half of the rows noise of 20 to 45 dB below the speech."""
    rows = (len(waveform), 1)
    gain = 10 ** (torch.empty(rows, device=waveform.device).uniform_(-0.5, 0.3))
    level = waveform.square().mean(1, keepdim=True).sqrt()
    below = 10 ** -torch.empty(rows, device=waveform.device).uniform_(1.0, 2.25) * (torch.rand(rows, device=waveform.device) < 0.5)
    return gain * (waveform + torch.randn_like(waveform) * level * below)


def _manner(waveform: Tensor, mel: Tensor) -> tuple[Tensor, Tensor]:
    """[B, 3, T]: log f0 less the crop's mean, voicing, energy; and voicing [B, 1, T]."""
    f0 = pitch(waveform)[:, None]
    voiced = (f0 > 0).float()
    log_f0 = f0.clamp(min=50.0).log()
    mean = (log_f0 * voiced).sum(2, keepdim=True) / voiced.sum(2, keepdim=True).clamp(min=1.0)
    energy = (mel.mean(1, keepdim=True) - _MEL_MEAN) / _MEL_SCALE
    return torch.cat([3.0 * (log_f0 - mean), voiced, energy], dim=1), voiced


@torch.no_grad()
def encode_corpus(network: S3Network, corpus: Corpus, path: Path, rows: int = 256) -> NDArray[np.uint16]:
    """Codes of every utterance on its own, as of a recording: uint16 [tokens of the corpus], kept in ``path``.

    In full float32: prompts are encoded on CPUs, and a rounding that falls the other way is another code.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    codes = np.zeros(corpus.num_tokens, dtype=np.uint16)
    order = np.argsort(corpus.tokens, kind="stable")
    for start in tqdm(range(0, len(order), rows), desc="codes", unit="batch"):
        chosen = order[start : start + rows]
        longest = int(corpus.tokens[chosen].max())
        firsts = torch.from_numpy(np.minimum(corpus.starts[chosen], corpus.num_tokens - longest)).to(corpus.device)
        skipped = corpus.starts[chosen] - firsts.cpu().numpy()  # only at the very end of the corpus
        tokens = torch.from_numpy(corpus.tokens[chosen]).to(corpus.device)
        waveform = corpus.waveforms(firsts, longest)
        for row in np.flatnonzero(skipped):
            waveform[row] = waveform[row].roll(-int(skipped[row]) * 960)
        inside = torch.arange(waveform.shape[1], device=corpus.device)[None] < tokens[:, None] * 960
        mel = log_mel_16k(resample(waveform * inside, AUDIO_FORMAT.sample_rate, REFERENCE_SAMPLE_RATE))
        found = network.tokens(mel, tokens * 4)[0].cpu().numpy()
        for row, place in enumerate(chosen):
            begin, count = int(corpus.starts[place]), int(corpus.tokens[place])
            codes[begin : begin + count] = found[row, :count]
    np.save(path, codes)
    return codes
