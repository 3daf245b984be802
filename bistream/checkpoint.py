"""Reads a CosyVoice2 model directory: sizes from ``cosyvoice2.yaml`` and ``config.json``, tensors from ``.pt`` files.

The yaml is HyperPyYAML: its tags name upstream's classes. It is parsed as data (a tagged mapping becomes a dict with the
class under ``__class__``), so no upstream code is imported. ``torch`` is imported only where tensors are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bistream.config import (
    CheckpointConfig,
    EstimatorConfig,
    FlowConfig,
    FlowEncoderConfig,
    LanguageModelConfig,
    VocoderConfig,
)
from bistream.errors import CheckpointError

if TYPE_CHECKING:
    import torch

YAML_NAMES = ("cosyvoice2.yaml", "cosyvoice.yaml")  # early releases used the second name
QWEN_DIRECTORY = "CosyVoice-BlankEN"


class _DataLoader(yaml.SafeLoader):
    """Keeps tagged nodes as plain data instead of building objects."""


# YAML 1.1 reads 1e-06 as a string; HyperPyYAML (ruamel, YAML 1.2) reads it as a number.
_DataLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+\Z"),
    list("-+0123456789."),
)


class _Reference(str):
    """The text of a ``!ref``, resolved once the whole document is read."""


def _construct_tagged(loader: _DataLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {"__class__": suffix, **loader.construct_mapping(node, deep=True)}
    if isinstance(node, yaml.SequenceNode):
        return {"__class__": suffix, "__args__": loader.construct_sequence(node, deep=True)}
    return {"__class__": suffix}


def _construct_reference(loader: _DataLoader, node: yaml.ScalarNode) -> _Reference:
    return _Reference(loader.construct_scalar(node))


_DataLoader.add_constructor("!ref", _construct_reference)
for _tag in ("!new:", "!name:", "!apply:", "!module:"):
    _DataLoader.add_multi_constructor(_tag, _construct_tagged)

_REFERENCE_NAME = re.compile(r"<([A-Za-z_][A-Za-z0-9_]*)>")


def _resolve(value: Any, top: Mapping[str, Any]) -> Any:
    """Replace ``!ref <name>`` (also products such as ``<chunk_size> * <token_mel_ratio>``) with top-level values."""
    if isinstance(value, _Reference):
        factors = [factor.strip() for factor in value.split("*")]
        resolved = [_resolve_factor(factor, top) for factor in factors]
        if len(resolved) == 1:
            return resolved[0]
        product = 1
        for factor in resolved:
            product *= factor
        return product
    if isinstance(value, dict):
        return {key: _resolve(item, top) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, top) for item in value]
    return value


def _resolve_factor(text: str, top: Mapping[str, Any]) -> Any:
    match = _REFERENCE_NAME.fullmatch(text)
    return _resolve(top[match[1]], top) if match else yaml.safe_load(text)


def read_yaml(path: Path) -> dict[str, Any]:
    """Parse a HyperPyYAML file as data, references resolved for the sections that inference needs."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_DataLoader)
        sections = {key: document[key] for key in ("llm", "flow", "hift")}
        return {key: _resolve(section, document) for key, section in sections.items()}
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} could not be read ({_one_line(error)}); restore it from the released model.") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def find_file(model_dir: str | Path, *names: str) -> Path:
    """The first of ``names`` that exists in ``model_dir``; ``CheckpointError`` naming the file otherwise."""
    for name in names:
        path = Path(model_dir) / name
        if path.is_file():
            return path
    raise CheckpointError(f"{names[0]} is missing in the model directory; check model_dir or download the model again.")


def _pick(section: Mapping[str, Any], *names: str, **renamed: str) -> dict[str, Any]:
    """The named keys that a yaml section has, lists converted to tuples; ``field=key`` renames."""
    keys = {**{name: name for name in names}, **renamed}
    return {field: _freeze(section[key]) for field, key in keys.items() if key in section}


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value


def read_config(model_dir: str | Path) -> CheckpointConfig:
    """All sizes of a model directory. Raises ``CheckpointError`` naming the file that is missing or unreadable."""
    yaml_path = find_file(model_dir, *YAML_NAMES)
    sections = read_yaml(yaml_path)
    qwen_path = find_file(model_dir, f"{QWEN_DIRECTORY}/config.json")
    try:
        qwen = json.loads(qwen_path.read_text(encoding="utf-8"))
        return CheckpointConfig(
            language_model=_language_model_config(sections["llm"], qwen),
            flow=_flow_config(sections["flow"]),
            vocoder=_vocoder_config(sections["hift"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{yaml_path.name} or {QWEN_DIRECTORY}/{qwen_path.name} could not be interpreted ({_one_line(error)}); "
            "restore them from the released model."
        ) from error


def _language_model_config(llm: Mapping[str, Any], qwen: Mapping[str, Any]) -> LanguageModelConfig:
    body = _pick(
        qwen,
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
        "max_position_embeddings",
        text_vocab_size="vocab_size",
    )
    sampling = _pick(llm.get("sampling", {}), "top_p", "top_k", "win_size", "tau_r")
    return LanguageModelConfig(**body, **sampling, **_pick(llm, "speech_token_size", "mix_ratio"))


def _flow_config(flow: Mapping[str, Any]) -> FlowConfig:
    encoder = FlowEncoderConfig(
        **_pick(
            flow["encoder"],
            "input_size",
            "output_size",
            "attention_heads",
            "linear_units",
            "num_blocks",
            "num_up_blocks",
            "static_chunk_size",
        )
    )
    decoder = flow["decoder"]
    estimator = EstimatorConfig(
        **_pick(
            decoder["estimator"],
            "in_channels",
            "out_channels",
            "channels",
            "attention_head_dim",
            "n_blocks",
            "num_mid_blocks",
            "num_heads",
            "static_chunk_size",
        )
    )
    cfm = decoder.get("cfm_params", {}).get("content", {})
    return FlowConfig(
        encoder=encoder,
        estimator=estimator,
        **_pick(flow, "vocab_size", "input_size", "output_size", "spk_embed_dim", "pre_lookahead_len", "token_mel_ratio"),
        **_pick(cfm, "inference_cfg_rate"),
    )


def _vocoder_config(hift: Mapping[str, Any]) -> VocoderConfig:
    return VocoderConfig(
        **_pick(
            hift,
            "in_channels",
            "base_channels",
            "nb_harmonics",
            "sampling_rate",
            "nsf_alpha",
            "nsf_sigma",
            "nsf_voiced_threshold",
            "upsample_rates",
            "upsample_kernel_sizes",
            "resblock_kernel_sizes",
            "resblock_dilation_sizes",
            "source_resblock_kernel_sizes",
            "source_resblock_dilation_sizes",
            "lrelu_slope",
            "audio_limit",
        ),
        **_pick(hift.get("istft_params", {}), istft_n_fft="n_fft", istft_hop_len="hop_len"),
        **_pick(hift.get("f0_predictor", {}), f0_channels="cond_channels"),
    )


def load_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a ``.pt`` file, memory-mapped, on the CPU. ``weights_only=True``: no code from the file is run."""
    import torch  # noqa: PLC0415  (this module must be importable without torch)

    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing in the model directory; check model_dir or download the model again.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many exception types for a damaged file
        raise CheckpointError(f"{path.name} could not be read ({type(error).__name__}); the file is damaged, download it again.") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path.name} does not hold a state dict; download it again.")
    return state


def check_state_dict(file_name: str, state: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Strict: a missing, extra or misshapen key is a ``CheckpointError`` that names file, key and both shapes."""
    for key, shape in expected.items():
        if key not in state:
            raise CheckpointError(f"{file_name} lacks the key {key} of shape {list(shape)}; {_MISMATCH}")
        found = tuple(state[key].shape)
        if found != shape:
            raise CheckpointError(f"{file_name}: key {key} has shape {list(found)}, the configuration has {list(shape)}; {_MISMATCH}")
    for key in _extra(state, expected):
        raise CheckpointError(f"{file_name} has the unexpected key {key} of shape {list(state[key].shape)} (expected: none); {_MISMATCH}")


_MISMATCH = "use the cosyvoice2.yaml and CosyVoice-BlankEN/config.json that belong to these weights."


def _extra(state: Iterable[str], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    return sorted(key for key in state if key not in expected)
