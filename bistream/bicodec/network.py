"""All networks of the codec that speech needs, as one module. In and out of a model directory: ``weights``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bistream.bicodec.config import CodecConfig
from bistream.bicodec.frame_nets import Encoder, Prenet
from bistream.bicodec.generator import WaveGenerator
from bistream.bicodec.quantizers import SemanticQuantizer
from bistream.bicodec.signal import Signal, WholeSignals
from bistream.bicodec.speaker import SpeakerEncoder
from bistream.gpu.precision import exact_float32


class BiCodec(nn.Module):
    """Weights alone; what a stream remembers is passed in as its ``Signal``. Products are float32 also on a GPU, where nearly equal codes
    would change places with TF32; that is a flag of the process, so calls come from one thread at a time.

    tf32: audio is computed with it, in half the time on an H200, at 48 dB from float32 (random weights).
    """

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.tf32 = False
        self.encoder = Encoder(config.encoder)
        self.quantizer = SemanticQuantizer(config.quantizer)
        self.speaker_encoder = SpeakerEncoder(config.speaker)
        self.prenet = Prenet(config.prenet, config.speaker.output_size)
        self.decoder = WaveGenerator(config.generator)

    @torch.inference_mode()
    @exact_float32()
    def semantic_tokens(self, features: Tensor) -> Tensor:
        """Features of whole recordings of one length [B, T, input_size] -> int64 [B, T]."""
        return self.quantizer.tokens(self.encoder(features.transpose(1, 2), WholeSignals()))

    @torch.inference_mode()
    @exact_float32()
    def global_tokens(self, mel: Tensor) -> Tensor:
        """Mel frames of clips [B, bins, T] -> int64 [B, 32]."""
        return self.speaker_encoder.tokens(mel)

    @torch.inference_mode()
    @exact_float32()
    def voice_vector(self, global_tokens: Tensor) -> Tensor:
        """int64 [B, 32] -> [B, C]; does not change in a session."""
        return self.speaker_encoder.vector(global_tokens)

    @torch.inference_mode()
    def audio(self, semantic: Tensor, voice: Tensor, signal: Signal) -> Tensor:
        """semantic int64 [B, T], voice as of ``voice_vector`` [B, C] -> samples [B, samples_per_token T], as late as ``signal`` says."""
        with exact_float32(tf32=self.tf32):
            x = self.prenet(self.quantizer.vectors(semantic), signal, voice) + voice[:, :, None]
            samples: Tensor = self.decoder(x, signal)
        return samples
