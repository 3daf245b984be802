"""Training of the flow: the served network (``FlowNetwork``), velocity of conditional flow matching (Lipman et al. 2022).

Half of the batches see chunks of 25 tokens as a stream does, half of those with the demo's limit of context; the others see everything.
All conditions together are dropped in a fifth of the rows, for classifier-free guidance. ``FlowMels`` speaks with the trained flow,
for the vocoder's last steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bistream.checkpoints.config import FlowConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.token2mel.encoder import ConformerLayer
from bistream.token2mel.flow import FlowBatch, FlowNetwork
from bistream.token2mel.layers import WindowLinear
from bistream.token2mel.memory import BlankMemory
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS
from training.corpus_data import Corpus, CropSampler
from training.features import fbank_16k, mel_24k, resample
from training.loop import adamw, update
from training.sizes import Sizes
from training.speaker_task import SpeakerNetwork

SHORTEST_TOKENS, LONGEST_TOKENS, LAST_TOKENS = 50, 200, 375
_LAST_TENTH = 0.9
_DROPPED = 0.2
_MOST_PROMPT = 0.3
_SIGMA = 1e-6
_MEL_MEAN = -5.5
_VOICE_TOKENS = 75
_PROMPT_TOKENS = 50  # of ``FlowMels``
LEFT_CHUNKS = 4  # of the demo's settings


def initialise(network: FlowNetwork) -> None:
    """Parameters that the served modules leave empty."""
    for module in network.modules():
        if isinstance(module, WindowLinear):
            nn.init.normal_(module.weight, std=(module.weight.shape[1] * module.weight.shape[2]) ** -0.5)
            nn.init.zeros_(module.bias)
        for name in ("content_bias", "position_bias"):
            if hasattr(module, name):
                nn.init.zeros_(getattr(module, name))
    final = network.matching.estimator.final_projection
    nn.init.zeros_(final.weight)
    nn.init.constant_(final.bias, _MEL_MEAN)  # the mean velocity: noise has mean 0


def forget_positions(network: FlowNetwork) -> None:
    """The encoder keeps its projected position tables; in training their weights change."""
    for module in network.encoder.modules():
        if isinstance(module, ConformerLayer):
            module.attention.positions = torch.empty(0)


class FlowTask:
    name = "flow"

    def __init__(self, corpus: Corpus, codes: NDArray[np.uint16], speaker: SpeakerNetwork, sizes: Sizes, seed: int = 0) -> None:
        """speaker: trained, or else the speaker's vector says little; it gets no gradients."""
        torch.manual_seed(seed)
        config, plan = sizes.checkpoint.flow, sizes.plan
        self.network = FlowNetwork(config)
        initialise(self.network)
        self.network.to(corpus.device)
        self._config, self._speaker = config, speaker.eval().requires_grad_(False)
        self.total_steps, self.warmup_steps = plan.flow_steps, min(500, plan.flow_steps // 10)
        self._tokens_a_step = plan.flow_seconds * 25
        self._corpus, self._sampler = corpus, CropSampler(corpus, seed)
        self._codes = torch.from_numpy(codes.astype(np.int64)).to(corpus.device)
        self._random = np.random.default_rng(seed)
        self.modules: Mapping[str, nn.Module] = {"network": self.network}
        self.optimizers: Mapping[str, torch.optim.Optimizer] = {"adam": adamw(self.network.parameters(), 1e-3, (0.9, 0.98), 0.01)}

    def step(self, number: int) -> dict[str, Tensor]:
        longest = LAST_TOKENS if number > _LAST_TENTH * self.total_steps else LONGEST_TOKENS
        tokens = int(self._random.integers(SHORTEST_TOKENS, longest))
        loss = self.loss(max(1, self._tokens_a_step // tokens), tokens)
        update(loss, self.optimizers["adam"])
        return {"velocity": loss.detach()}

    def loss(self, rows: int, tokens: int) -> Tensor:
        first, _ = self._sampler.draw(rows, tokens + AUDIO_FORMAT.lookahead_tokens + _VOICE_TOKENS)
        mel = mel_24k(self._corpus.waveforms(first, tokens + AUDIO_FORMAT.lookahead_tokens))[:, : tokens * self._config.token_mel_ratio]
        batch = self._batch(first, tokens, mel)
        forget_positions(self.network)
        memory, device = BlankMemory(), first.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            bias = self.network.attention_bias(batch, self._config.token_mel_ratio)
            conditions = self.network.conditions(batch, bias, memory.encoder())
            conditions = conditions * (torch.rand(rows, 1, 1, device=device) >= _DROPPED)
            time = 1 - torch.cos(torch.rand(rows, device=device) * 0.5 * math.pi)
            noise = torch.randn_like(mel)
            mixed = (1 - (1 - _SIGMA) * time)[:, None, None] * noise + time[:, None, None] * mel
            estimator = self.network.matching.estimator
            velocity = estimator(torch.cat([mixed, conditions], dim=-1), estimator.time_biases(time), bias, memory.step(0))
        error: Tensor = velocity.float() - (mel - (1 - _SIGMA) * noise)
        return error.square().mean()

    def _batch(self, first: Tensor, tokens: int, mel: Tensor) -> FlowBatch:
        rows, device = len(first), first.device
        offset = torch.arange(-LOOKAHEAD_HISTORY_TOKENS, tokens + AUDIO_FORMAT.lookahead_tokens, device=device)
        ids = self._codes[(first[:, None] + offset).clamp(min=0)]
        present = (offset >= 0).repeat(rows, 1)
        if self._random.random() < 0.5:  # the last call of a stream: nothing follows
            present = present & (offset < tokens)
        frames = torch.arange(mel.shape[1], device=device)
        share = torch.rand(rows, 1, device=device) * _MOST_PROMPT * (torch.rand(rows, 1, device=device) < 0.5)
        prompt = mel * (frames < (share * tokens).floor() * self._config.token_mel_ratio)[:, :, None]
        streaming = self._random.random() < 0.5
        full = torch.full((rows,), tokens, device=device)
        return FlowBatch(
            token_ids=ids,
            present=present,
            starts=torch.zeros_like(full),
            lengths=full,
            context_chunks=torch.zeros_like(full),
            prompt_mel=prompt,
            speaker=self._voice_vector(first + tokens),
            table_chunks=0,
            left_context_chunks=LEFT_CHUNKS if streaming and self._random.random() < 0.5 else 0,
            streaming=streaming,
        )

    @torch.no_grad()
    def _voice_vector(self, first: Tensor) -> Tensor:
        """Of other seconds of the same voice."""
        waveform = resample(self._corpus.waveforms(first, _VOICE_TOKENS), AUDIO_FORMAT.sample_rate, REFERENCE_SAMPLE_RATE)
        vector: Tensor = self._speaker(fbank_16k(waveform))
        return vector


def flow_batch(codes: Tensor, prompt_mel: Tensor, speaker: Tensor, config: FlowConfig) -> FlowBatch:
    """Whole sequences of equal length, chunked as in a stream, nothing after them.

    codes: int64 [B, T], the prompt's first. prompt_mel: float32 [B, frames of the prompt, 80]. speaker: float32 [B, size].
    """
    rows, count = codes.shape
    full = torch.full((rows,), count, device=codes.device)
    missing = config.token_mel_ratio * count - prompt_mel.shape[1]
    ids = F.pad(codes, (LOOKAHEAD_HISTORY_TOKENS, config.pre_lookahead_len))
    place = torch.arange(-LOOKAHEAD_HISTORY_TOKENS, count + config.pre_lookahead_len, device=codes.device)
    return FlowBatch(
        token_ids=ids,
        present=((place >= 0) & (place < count)).repeat(rows, 1),
        starts=torch.zeros_like(full),
        lengths=full,
        context_chunks=torch.zeros_like(full),
        prompt_mel=F.pad(prompt_mel, (0, 0, 0, missing)),
        speaker=speaker,
        table_chunks=0,
        left_context_chunks=0,
        streaming=True,
    )


class FlowMels:
    """A ``vocoder_task.MelMaker``: the teacher's own codes and timing, the recording before them as prompt."""

    def __init__(self, corpus: Corpus, codes: NDArray[np.uint16], network: FlowNetwork, speaker: SpeakerNetwork) -> None:
        self._corpus, self._network, self._speaker = corpus, network.eval(), speaker.eval()
        self._codes = torch.from_numpy(codes.astype(np.int64)).to(corpus.device)
        network.prepare()

    @torch.no_grad()
    def __call__(self, first: Tensor, tokens: int) -> Tensor:
        """first int64 [B] -> mel [B, 2 tokens, 80] of the stretches; a voice's first seconds have the end of another voice as prompt."""
        config = self._network.config
        begin, count = (first - _PROMPT_TOKENS).clamp(min=0), _PROMPT_TOKENS + tokens
        waveform = self._corpus.waveforms(begin, count)
        codes = self._codes[begin[:, None] + torch.arange(count, device=first.device)]
        prompt = mel_24k(waveform)[:, : _PROMPT_TOKENS * config.token_mel_ratio]
        speaker = self._speaker(fbank_16k(resample(waveform, AUDIO_FORMAT.sample_rate, REFERENCE_SAMPLE_RATE)))
        made = self._network(flow_batch(codes, prompt, speaker, config), BlankMemory())
        index = ((first - begin) * config.token_mel_ratio)[:, None] + torch.arange(tokens * config.token_mel_ratio, device=first.device)
        stretch: Tensor = made.gather(1, index[:, :, None].expand(-1, -1, made.shape[2]))
        return stretch
