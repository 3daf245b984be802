"""Configuration: sizes of the model from its checkpoint (``CheckpointConfig``) and how this process runs it (``RuntimeConfig``).

Both are frozen trees built once. Defaults exist here and nowhere else: templates, scripts and docs read them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bistream.errors import ConfigError

LONGEST_S = 1e6  # limit of every time in the configuration (11 days): blocking calls do not accept infinity


@dataclass(frozen=True)
class LanguageModelConfig:
    """Qwen2 body (``CosyVoice-BlankEN/config.json``) plus the speech vocabulary and sampler (``cosyvoice2.yaml``)."""

    hidden_size: int = 896
    intermediate_size: int = 4864
    num_hidden_layers: int = 24
    num_attention_heads: int = 14
    num_key_value_heads: int = 2
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 32768
    text_vocab_size: int = 151936  # rows of the text embedding, padding rows included
    speech_token_size: int = 6561  # head rows are this + 3: eos, a second stop id, fill
    mix_ratio: tuple[int, int] = (5, 15)  # text : speech tokens of one interleaved block
    top_p: float = 0.8
    top_k: int = 25
    win_size: int = 10  # repetition-aware sampling looks back this many decided ids
    tau_r: float = 0.1

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


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
    inference_cfg_rate: float = 0.7
    n_timesteps: int = 10


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
class CheckpointConfig:
    """All sizes of one model directory."""

    language_model: LanguageModelConfig = LanguageModelConfig()
    flow: FlowConfig = FlowConfig()
    vocoder: VocoderConfig = VocoderConfig()


@dataclass(frozen=True)
class RuntimeConfig:
    """How one process runs its part of the pipeline; one field per ``parameters`` key of ``config.pbtxt``.

    Every Triton model of the repository receives only the keys that it uses; an unknown key is an error.
    """

    model_dir: str = ""  # the CosyVoice2-0.5B directory (or one made by scripts/make_checkpoint.py)
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16: weights and activations of LM and flow
    num_threads: int = 0  # torch and onnxruntime threads of this process; 0 keeps the library's default
    engine: str = "torch"  # torch | tensorrt_llm
    engine_dir: str = ""  # merged Hugging Face checkpoint for tensorrt_llm
    max_sessions: int = 64  # live sessions of this model at most; further ones are refused with BUSY
    session_idle_timeout_s: float = 30.0  # a session that receives nothing for this long is closed
    drain_timeout_s: float = 10.0  # at shutdown, time that running sessions have to finish
    max_text_chars: int = 4000  # per session, all pieces together
    min_reference_s: float = 0.5
    max_reference_s: float = 30.0
    kv_cache_tokens: int = 0  # positions of the paged KV cache, over all sessions; 0: max_sessions x max_session_tokens
    max_session_tokens: int = 4096  # positions (prompt, text and speech) per session; reserved when it starts
    max_rows: int = 256  # rows (tokens) of one language-model step at most
    kernels: str = "auto"  # auto | kernels | graphs | plain: which tier computes the networks (gpu/tier.py)
    flow_state_mb: int = 0  # byte budget of the flow's resident state; 0: 30 s of audio per session, at most 70 % of the free memory
    left_context_chunks: int = 0  # flow attends to this many chunks to its left; 0: unlimited, as the reference
    final_mode: str = "streaming"  # streaming | reference: how the last chunk of a stream is solved
    voices_dir: str = ""  # registered voices; empty: none
    default_speaker_id: str = ""  # used for requests with neither reference nor speaker_id (upstream's spk2info cache)
    voice_cache_size: int = 64  # most recently used voices that stay cached
    first_hop_tokens: int = 15  # speech tokens of the first audio chunk; 12 need one text block, 15 need two
    max_unread_audio_s: float = 60.0  # unplayed audio of a client at which its generation pauses (back-pressure)
    log_level: str = "info"

    def __post_init__(self) -> None:
        _check(self.engine in ("torch", "tensorrt_llm"), "engine", self.engine, "torch or tensorrt_llm")
        _check(self.dtype in ("auto", "float32", "bfloat16", "float16"), "dtype", self.dtype, "auto, float32, bfloat16 or float16")
        _check(self.kernels in ("auto", "kernels", "graphs", "plain"), "kernels", self.kernels, "auto, kernels, graphs or plain")
        _check(self.final_mode in ("streaming", "reference"), "final_mode", self.final_mode, "streaming or reference")
        for name in (
            "max_sessions",
            "max_text_chars",
            "max_session_tokens",
            "max_rows",
            "voice_cache_size",
        ):
            _check(getattr(self, name) > 0, name, getattr(self, name), "a number above 0")
        for name in ("session_idle_timeout_s", "min_reference_s", "max_reference_s", "max_unread_audio_s"):
            _check(0 < getattr(self, name) <= LONGEST_S, name, getattr(self, name), f"a number above 0, at most {LONGEST_S:g}")
        _check(0 <= self.drain_timeout_s <= LONGEST_S, "drain_timeout_s", self.drain_timeout_s, f"0 or more, at most {LONGEST_S:g}")
        _check(self.min_reference_s <= self.max_reference_s, "min_reference_s", self.min_reference_s, "max_reference_s or less")
        _check(self.kv_cache_tokens >= 0, "kv_cache_tokens", self.kv_cache_tokens, "0 (enough for all sessions) or more")
        _check(self.flow_state_mb >= 0, "flow_state_mb", self.flow_state_mb, "0 (automatic) or more")
        _check(6 <= self.first_hop_tokens <= 100, "first_hop_tokens", self.first_hop_tokens, "a number from 6 to 100")
        _check(self.num_threads >= 0, "num_threads", self.num_threads, "0 or more")
        _check(self.left_context_chunks >= 0, "left_context_chunks", self.left_context_chunks, "0 or more")

    @classmethod
    def from_strings(cls, values: Mapping[str, str]) -> RuntimeConfig:
        """Build from string parameters (``config.pbtxt``, environment). Raises ``ConfigError`` naming key and value."""
        return cls(**parse_fields(cls, values))


def _check(condition: bool, key: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"Parameter {key!r} is {value!r}; set it to {expected}.")


def parse_fields(cls: type, values: Mapping[str, str]) -> dict[str, Any]:
    """Parse strings into the field types (str, int, float, bool) of dataclass ``cls``; unknown keys are errors."""
    hints = typing.get_type_hints(cls)
    known = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    parsed: dict[str, Any] = {}
    for key, text in values.items():
        if key not in known:
            raise ConfigError(f"Parameter {key!r} is unknown; known are {', '.join(sorted(known))}.")
        parsed[key] = _parse_value(key, text, known[key])
    return parsed


def _parse_value(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"Parameter {key!r} is {text!r}; set it to true or false.")
    if kind is int or kind is float:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"Parameter {key!r} is {text!r}; set it to a number ({kind.__name__}).") from None
    return text
