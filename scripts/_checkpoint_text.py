"""Text files of a model directory: the family's yaml (HyperPyYAML, inference sections) and ``CosyVoice-BlankEN/config.json``.

A ``CheckpointConfig`` goes in, file contents come out; ``bistream.checkpoints.reader.read_config`` reads the same sizes back.
Called by ``make_checkpoint.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bistream.checkpoints.config import CausalVocoderConfig, CheckpointConfig, DitFlowConfig, FlowConfig, LanguageModelConfig, VocoderConfig
from bistream.checkpoints.qwen2 import qwen2_config
from bistream.families.family import Family

_DIT_SIZES = ("dim", "depth", "heads", "dim_head", "ff_mult", "mel_dim", "mu_dim", "spk_dim")


def checkpoint_yaml(config: CheckpointConfig) -> str:
    """The sections that inference reads, with the tags and class names of the released file."""
    flow, family, rates = config.flow, config.family, config.family.audio_format
    version = f"\n    version: {family.tokenizer_version}" if family.tokenizer_version else ""
    return f"""\
# Random weights made by scripts/make_checkpoint.py; the inference sections of a {family.title} configuration.
sample_rate: {rates.sample_rate}
llm_input_size: {config.language_model.hidden_size}
llm_output_size: {config.language_model.hidden_size}
spk_embed_dim: {flow.spk_embed_dim}
qwen_pretrain_path: ''
token_frame_rate: {rates.tokens_per_second}
token_mel_ratio: {flow.token_mel_ratio}
chunk_size: {flow.chunk_tokens} # of streaming inference, in tokens
num_decoding_left_chunks: -1 # below 0: all

{_llm_section(config.language_model, family)}
{_flow_section(flow)}
{_hift_section(config.vocoder)}
get_tokenizer: !name:cosyvoice.tokenizer.tokenizer.get_qwen_tokenizer
    token_path: !ref <qwen_pretrain_path>
    skip_special_tokens: True{version}
allowed_special: 'all'
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: {4 * rates.samples_per_mel_frame}
    num_mels: {flow.output_size}
    sampling_rate: !ref <sample_rate>
    hop_size: {rates.samples_per_mel_frame}
    win_size: {4 * rates.samples_per_mel_frame}
    fmin: 0
    fmax: {_upper_end(family)}
    center: False
"""


def _numbers(values: Sequence[Any]) -> str:
    """A flow-style YAML list, nested where the values are."""
    return json.dumps(values)


def _upper_end(family: Family) -> str:
    """Of the mel; the released file has null for all frequencies."""
    return "null" if family.mel_high_hz == family.audio_format.sample_rate / 2 else f"{family.mel_high_hz:g}"


def _llm_section(llm: LanguageModelConfig, family: Family) -> str:
    return f"""\
llm: !new:cosyvoice.llm.llm.{family.language_model}
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    speech_token_size: {llm.speech_token_size}
    length_normalized_loss: True
    lsm_weight: 0
    mix_ratio: {_numbers(llm.mix_ratio)}
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: {llm.top_p}
        top_k: {llm.top_k}
        win_size: {llm.win_size}
        tau_r: {llm.tau_r}
"""


def _own_key(indent: int, name: str, value: int, released: int) -> str:
    """A line for a key that upstream's yaml does not have, where the value is not upstream's."""
    return "" if value == released else f"\n{indent * ' '}{name}: {value} # {released} in the released model, which has no such key"


def _flow_section(flow: FlowConfig) -> str:
    parts, estimator = _dit_parts(flow) if isinstance(flow, DitFlowConfig) else _unet_parts(flow)
    steps = _own_key(16, "n_timesteps", flow.n_timesteps, 10)
    return f"""\
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWith{"DiT" if isinstance(flow, DitFlowConfig) else "Xvec"}
    input_size: {flow.input_size}
    output_size: {flow.output_size}
    spk_embed_dim: !ref <spk_embed_dim>
    output_type: 'mel'
    vocab_size: {flow.vocab_size}
    input_frame_rate: !ref <token_frame_rate>
    only_mask_loss: True
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: {flow.pre_lookahead_len}
{parts}
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        in_channels: 240
        n_spks: 1
        spk_emb_dim: 80
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: 'euler'
                t_scheduler: 'cosine'
                training_cfg_rate: 0.2
                inference_cfg_rate: {flow.inference_cfg_rate}{steps}
                reg_loss_type: 'l1'
{estimator}
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
            num_decoding_left_chunks: !ref <num_decoding_left_chunks>
"""


def _unet_parts(flow: FlowConfig) -> tuple[str, str]:
    """What is before the decoder, and the estimator."""
    encoder, estimator = flow.encoder, flow.estimator
    up_blocks = _own_key(8, "num_up_blocks", encoder.num_up_blocks, 4)
    return (
        f"""\
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: {encoder.output_size}
        attention_heads: {encoder.attention_heads}
        linear_units: {encoder.linear_units}
        num_blocks: {encoder.num_blocks}{up_blocks}
        dropout_rate: 0.1
        positional_dropout_rate: 0.1
        attention_dropout_rate: 0.1
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        input_size: {encoder.input_size}
        use_cnn_module: False
        macaron_style: False
        static_chunk_size: !ref <chunk_size>""",
        f"""\
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: {estimator.in_channels}
            out_channels: {estimator.out_channels}
            channels: {_numbers(estimator.channels)}
            dropout: 0.0
            attention_head_dim: {estimator.attention_head_dim}
            n_blocks: {estimator.n_blocks}
            num_mid_blocks: {estimator.num_mid_blocks}
            num_heads: {estimator.num_heads}
            act_fn: 'gelu'""",
    )


def _dit_parts(flow: DitFlowConfig) -> tuple[str, str]:
    """As ``_unet_parts``."""
    sizes = "\n".join(f"            {name}: {getattr(flow.dit, name)}" for name in _DIT_SIZES)
    return (
        f"""\
    pre_lookahead_layer: !new:cosyvoice.transformer.upsample_encoder.PreLookaheadLayer
        in_channels: {flow.input_size}
        channels: {flow.lookahead_channels}
        pre_lookahead_len: {flow.pre_lookahead_len}""",
        f"""\
        estimator: !new:cosyvoice.flow.DiT.dit.DiT
{sizes}
            out_channels: {flow.output_size}""",
    )


def _hift_section(vocoder: VocoderConfig) -> str:
    causal, own_keys = "", ""
    if isinstance(vocoder, CausalVocoderConfig):
        causal, own_keys = "Causal", f"\n    conv_pre_look_right: {vocoder.conv_pre_look_right}"
    return f"""\
hift: !new:cosyvoice.hifigan.generator.{causal}HiFTGenerator
    in_channels: {vocoder.in_channels}
    base_channels: {vocoder.base_channels}
    nb_harmonics: {vocoder.nb_harmonics}
    sampling_rate: !ref <sample_rate>
    nsf_alpha: {vocoder.nsf_alpha}
    nsf_sigma: {vocoder.nsf_sigma}
    nsf_voiced_threshold: {vocoder.nsf_voiced_threshold}
    upsample_rates: {_numbers(vocoder.upsample_rates)}
    upsample_kernel_sizes: {_numbers(vocoder.upsample_kernel_sizes)}
    istft_params:
        n_fft: {vocoder.istft_n_fft}
        hop_len: {vocoder.istft_hop_len}
    resblock_kernel_sizes: {_numbers(vocoder.resblock_kernel_sizes)}
    resblock_dilation_sizes: {_numbers(vocoder.resblock_dilation_sizes)}
    source_resblock_kernel_sizes: {_numbers(vocoder.source_resblock_kernel_sizes)}
    source_resblock_dilation_sizes: {_numbers(vocoder.source_resblock_dilation_sizes)}
    lrelu_slope: {vocoder.lrelu_slope}
    audio_limit: {vocoder.audio_limit}{own_keys}
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.{causal}ConvRNNF0Predictor
        num_class: 1
        in_channels: {vocoder.in_channels}
        cond_channels: {vocoder.f0_channels}
"""


def qwen2_config_json(llm: LanguageModelConfig) -> str:
    """``config.json`` of ``CosyVoice-BlankEN``."""
    return json.dumps(qwen2_config(llm, llm.text_vocab_size, "float32"), indent=2) + "\n"
