"""Sizes of the model, read from its checkpoint (``checkpoints.sizes``): a frozen tree that is built once, ``CheckpointConfig``.

Defaults are those of the released CosyVoice2 (``DEFAULT_FAMILY``) and exist here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from bistream.families.family import BlockLayout, Family, SpeechRows
from bistream.families.registry import DEFAULT_FAMILY


@dataclass(frozen=True)
class LanguageModelConfig:
    """Qwen2 body (``CosyVoice-BlankEN/config.json``), speech vocabulary and sampler (the yaml), rows of the speech head (the family)."""

    hidden_size: int = 896
    intermediate_size: int = 4864
    num_hidden_layers: int = 24
    num_attention_heads: int = 14
    num_key_value_heads: int = 2
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 32768
    text_vocab_size: int = 151936  # rows of the text embedding, padding rows included
    speech_token_size: int = 6561  # the rows behind them: ``rows``
    rows: SpeechRows = DEFAULT_FAMILY.rows
    blocks: BlockLayout = DEFAULT_FAMILY.blocks
    tokens_per_second: int = DEFAULT_FAMILY.audio_format.tokens_per_second
    head_has_bias: bool = True
    mix_ratio: tuple[int, int] = (5, 15)  # text : speech tokens of one interleaved block
    top_p: float = 0.8
    top_k: int = 25
    win_size: int = 10  # repetition-aware sampling looks back this many decided ids
    tau_r: float = 0.1
    temperature: float = 1.0  # the usual one; a request's counts in it, so 1 is the usual one in every family
    text_position_head: tuple[int, int] | None = None  # layer and query head that follow the spoken text, as ``alignment`` says

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_scores(self) -> int:
        """Rows of the head that the engine loads: the speech tokens and the ids that end a turn."""
        return self.speech_token_size + self.rows.num_scored


@dataclass(frozen=True)
class FlowEncoderConfig:
    """Upsampling conformer encoder. ``num_up_blocks`` is hard-wired to 4 upstream; our yaml may carry it (tiny models)."""

    input_size: int = 512
    output_size: int = 512
    attention_heads: int = 8
    linear_units: int = 2048
    num_blocks: int = 6
    num_up_blocks: int = 4
    static_chunk_size: int = 25


@dataclass(frozen=True)
class EstimatorConfig:
    """Flow-matching U-Net. ``channels`` holds one width: the causal decoder has one down, one up and the mid units."""

    in_channels: int = 320
    out_channels: int = 80
    channels: tuple[int, ...] = (256,)
    attention_head_dim: int = 64
    n_blocks: int = 4
    num_mid_blocks: int = 12
    num_heads: int = 8
    static_chunk_size: int = 50


@dataclass(frozen=True)
class FlowConfig:
    encoder: FlowEncoderConfig = FlowEncoderConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    vocab_size: int = 6561
    input_size: int = 512
    output_size: int = 80
    spk_embed_dim: int = 192
    pre_lookahead_len: int = 3
    token_mel_ratio: int = 2
    tokens_per_second: int = DEFAULT_FAMILY.audio_format.tokens_per_second  # input_frame_rate
    inference_cfg_rate: float = 0.7
    n_timesteps: int = 10

    @property
    def chunk_tokens(self) -> int:
        """Tokens of an attention chunk."""
        return self.encoder.static_chunk_size

    @property
    def chunk_place(self) -> str:
        """Where the yaml has it."""
        return "flow.encoder.static_chunk_size"


@dataclass(frozen=True)
class DitConfig:
    """Flow-matching transformer of CosyVoice3, one evaluation of which is a stack of ``depth`` blocks over all frames."""

    dim: int = 1024
    depth: int = 22
    heads: int = 16
    dim_head: int = 64
    ff_mult: int = 2
    mel_dim: int = 80
    mu_dim: int = 80
    spk_dim: int = 80
    static_chunk_size: int = 50


@dataclass(frozen=True)
class DitFlowConfig(FlowConfig):
    """The flow without an encoder: ``encoder`` and ``estimator`` keep their defaults and describe nothing. ``input_size`` is the width of
    the token embedding, which the lookahead convolutions read as it is."""

    input_size: int = 80
    lookahead_channels: int = 1024
    dit: DitConfig = DitConfig()

    @property
    def chunk_tokens(self) -> int:
        return self.dit.static_chunk_size // self.token_mel_ratio

    @property
    def chunk_place(self) -> str:
        return "flow.decoder.estimator.static_chunk_size, in frames"


@dataclass(frozen=True)
class VocoderConfig:
    """HiFT: neural source filter plus inverse STFT."""

    in_channels: int = 80
    base_channels: int = 512
    nb_harmonics: int = 8
    sampling_rate: int = 24000
    nsf_alpha: float = 0.1
    nsf_sigma: float = 0.003
    nsf_voiced_threshold: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[int, ...] = (16, 11, 7)
    istft_n_fft: int = 16
    istft_hop_len: int = 4
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    f0_channels: int = 512


@dataclass(frozen=True)
class CausalVocoderConfig(VocoderConfig):
    """HiFT of causal convolutions. Both: mel frames to the right that a frame needs."""

    conv_pre_look_right: int = 4
    f0_look_right: int = 3


@dataclass(frozen=True)
class CheckpointConfig:
    """All sizes of one model directory. Where ``family.flow`` is dit, ``flow`` is a ``DitFlowConfig``; where ``family.vocoder`` is
    causal_hift, ``vocoder`` is a ``CausalVocoderConfig``."""

    language_model: LanguageModelConfig = LanguageModelConfig()
    flow: FlowConfig = FlowConfig()
    vocoder: VocoderConfig = VocoderConfig()
    family: Family = DEFAULT_FAMILY
