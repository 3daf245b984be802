"""Mels of the trained flow: the teacher's own codes and timing, the recording before them as prompt. For the vocoder's last steps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.checkpoints.config import FlowConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.token2mel.flow import FlowBatch, FlowNetwork
from bistream.token2mel.memory import BlankMemory
from bistream.token2mel.sizes import LOOKAHEAD_HISTORY_TOKENS
from training.corpus_data import Corpus
from training.features import fbank_16k, mel_24k, resample
from training.speaker_task import SpeakerNetwork

PROMPT_TOKENS = 50


def flow_batch(codes: Tensor, prompt_mel: Tensor, speaker: Tensor, config: FlowConfig) -> FlowBatch:
    """Whole sequences of equal length, chunked as in a stream, nothing after them.

    codes: int64 [B, T], the prompt's first. prompt_mel: float32 [B, frames of the prompt, 80]. speaker: float32 [B, size].
    """
    rows, count = codes.shape
    full = torch.full((rows,), count, device=codes.device)
    missing = config.token_mel_ratio * count - prompt_mel.shape[1]
    ids = torch.nn.functional.pad(codes, (LOOKAHEAD_HISTORY_TOKENS, config.pre_lookahead_len))
    place = torch.arange(-LOOKAHEAD_HISTORY_TOKENS, count + config.pre_lookahead_len, device=codes.device)
    return FlowBatch(
        token_ids=ids,
        present=((place >= 0) & (place < count)).repeat(rows, 1),
        starts=torch.zeros_like(full),
        lengths=full,
        context_chunks=torch.zeros_like(full),
        prompt_mel=torch.nn.functional.pad(prompt_mel, (0, 0, 0, missing)),
        speaker=speaker,
        table_chunks=0,
        left_context_chunks=0,
        streaming=True,
    )


class FlowMels:
    """A ``vocoder_task.MelMaker``."""

    def __init__(self, corpus: Corpus, codes: NDArray[np.uint16], network: FlowNetwork, speaker: SpeakerNetwork) -> None:
        self._corpus, self._network, self._speaker = corpus, network.eval(), speaker.eval()
        self._codes = torch.from_numpy(codes.astype(np.int64)).to(corpus.device)
        network.prepare()

    @torch.no_grad()
    def __call__(self, first: Tensor, tokens: int) -> Tensor:
        """first int64 [B] -> mel [B, 2 tokens, 80] of the stretches; a voice's first seconds have the end of another voice as prompt."""
        config = self._network.config
        begin, count = (first - PROMPT_TOKENS).clamp(min=0), PROMPT_TOKENS + tokens
        waveform = self._corpus.waveforms(begin, count)
        codes = self._codes[begin[:, None] + torch.arange(count, device=first.device)]
        prompt = mel_24k(waveform)[:, : PROMPT_TOKENS * config.token_mel_ratio]
        speaker = self._speaker(fbank_16k(resample(waveform, AUDIO_FORMAT.sample_rate, REFERENCE_SAMPLE_RATE)))
        made = self._network(flow_batch(codes, prompt, speaker, config), BlankMemory())
        index = ((first - begin) * config.token_mel_ratio)[:, None] + torch.arange(tokens * config.token_mel_ratio, device=first.device)
        stretch: Tensor = made.gather(1, index[:, :, None].expand(-1, -1, made.shape[2]))
        return stretch
