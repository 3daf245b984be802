"""The reference's noise of the source: fixed uniform numbers, the same in every utterance, indexed by the sample since the speech began.

The reference draws them when it is built, from the generators that its flow has seeded; they follow from the sizes of both networks. They
have a mean of 0.5, so unvoiced frames have an offset. Only their merger over the harmonics is kept, 29 MB instead of 259.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bistream.checkpoints.config import CausalVocoderConfig, DitFlowConfig
from bistream.mel2wav.causal.source import F0_KERNEL
from bistream.mel2wav.hift import CONDNET_INDICES

NOISE_SECONDS = 300
_SOLVER_FRAMES = 15_000  # of the flow's noise, the first numbers after the generators are seeded
_SEED = 0
_PIECE_SAMPLES = 240_000


def reference_noise(flow: DitFlowConfig, vocoder: CausalVocoderConfig) -> Iterator[Tensor]:
    """Uniform numbers in [0, 1), float32 [samples, harmonics], in consecutive pieces of ``NOISE_SECONDS`` in all.

    Drawn after what the reference draws before: the solver's noise, the initial weights of the token embedding, the speaker projection
    and the f0 predictor, and a start phase that has no effect.
    """
    generator, harmonics = torch.Generator().manual_seed(_SEED), vocoder.nb_harmonics + 1
    torch.randn([1, flow.output_size, _SOLVER_FRAMES], generator=generator)
    torch.randn([flow.vocab_size, flow.input_size], generator=generator)
    f0_inputs = [(vocoder.in_channels, vocoder.f0_look_right + 1)] + [(vocoder.f0_channels, F0_KERNEL)] * (len(CONDNET_INDICES) - 1)
    linear = [(flow.output_size, flow.spk_embed_dim), *((vocoder.f0_channels, inputs * kernel) for inputs, kernel in f0_inputs)]
    for outputs, inputs in [*linear, (1, vocoder.f0_channels)]:
        torch.rand([outputs, inputs], generator=generator)
        torch.rand([outputs], generator=generator)
    torch.rand([1, harmonics], generator=generator)
    left = NOISE_SECONDS * vocoder.sampling_rate
    while left:
        samples = min(left, _PIECE_SAMPLES)
        yield torch.rand([samples, harmonics], generator=generator)
        left -= samples
