"""Reads a model directory: sizes from its family's yaml and ``config.json``, tensors from ``.pt`` files.

Of a family without flow and vocoder these keep their defaults in ``CheckpointConfig`` and describe nothing.

The yaml is HyperPyYAML: its tags name upstream's classes. It is parsed as data (a tagged mapping becomes a dict with the
class under ``__class__``), so no upstream code is imported. ``torch`` is imported only where tensors are read.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bistream.checkpoints.alignment import read_head
from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.files import check_content, family_of
from bistream.checkpoints.one_table import OneTableConfig, one_table_config
from bistream.checkpoints.sizes import FLOWS, VOCODERS, language_model_config
from bistream.errors import CheckpointError
from bistream.families.family import Family

if TYPE_CHECKING:
    import torch

TRAINING_ENTRIES = ("epoch", "step")


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
    """The first of ``names`` that exists in ``model_dir``; ``CheckpointError`` naming the file when none does, or it is a placeholder."""
    for name in names:
        path = Path(model_dir) / name
        if path.is_file():
            check_content(model_dir, name)
            return path
    raise CheckpointError(f"{names[0]} is missing in the model directory {model_dir}; correct its name, or download the model again.")


def read_config(model_dir: str | Path) -> CheckpointConfig:
    """All sizes of a model directory.

    Raises ``CheckpointError`` naming the file that is missing or unreadable, another model, or a size that this code cannot have.
    """
    family = family_of(model_dir)
    yaml_path = find_file(model_dir, *family.yaml_names)
    if family.flow is None or family.vocoder is None:
        return CheckpointConfig(_one_table(yaml_path, model_dir, family), family=family)
    sections = read_yaml(yaml_path)
    qwen_path = find_file(model_dir, f"{family.text_directory}/config.json")
    try:
        qwen = json.loads(qwen_path.read_text(encoding="utf-8"))
        config = CheckpointConfig(
            language_model=language_model_config(sections["llm"], qwen, family),
            flow=FLOWS[family.flow](sections["flow"]),
            vocoder=VOCODERS[family.vocoder](sections["hift"]),
            family=family,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{yaml_path.name} or {family.text_directory}/{qwen_path.name} could not be interpreted ({_one_line(error)}); "
            "restore them from the released model."
        ) from error
    _check_fixed_sizes(yaml_path.name, config)
    language_model = config.language_model
    return replace(config, language_model=replace(language_model, text_position_head=read_head(model_dir, language_model)))


def _one_table(codec_path: Path, model_dir: str | Path, family: Family) -> OneTableConfig:
    """codec_path: of the audio tokenizer's yaml, which says how many codes there are. Raises as ``read_config``."""
    paths = [find_file(model_dir, name) for name in (f"{family.text_directory}/config.json", "config.yaml")]
    try:
        qwen, audio, codec = (yaml.load(path.read_text(encoding="utf-8"), Loader=_DataLoader) for path in (*paths, codec_path))
        return one_table_config(qwen, codec, audio, family)
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        names = ", ".join(path.relative_to(model_dir).as_posix() for path in (*paths, codec_path))
        raise CheckpointError(f"{names} could not be interpreted ({_one_line(error)}); restore them from the released model.") from error


def _check_fixed_sizes(yaml_name: str, config: CheckpointConfig) -> None:
    """Of the family's ``AudioFormat``: hops, joints and the wire count in them."""
    flow, served_format = config.flow, config.family.audio_format
    rows = (
        ("chunk_size", flow.chunk_place, flow.chunk_tokens, served_format.chunk_tokens),
        ("pre_lookahead_len", "flow.pre_lookahead_len", flow.pre_lookahead_len, served_format.lookahead_tokens),
        ("sample_rate", "hift.sampling_rate", config.vocoder.sampling_rate, served_format.sample_rate),
        ("token_mel_ratio", "flow.token_mel_ratio", flow.token_mel_ratio, served_format.mel_frames_per_token),
        ("token_frame_rate", "flow.input_frame_rate", flow.tokens_per_second, served_format.tokens_per_second),
    )
    for name, place, found, served in rows:
        if found != served:
            raise CheckpointError(
                f"{yaml_name} has {name} {found} ({place}), and only {served} can be served; use a checkpoint trained with {served}."
            )
    if config.flow.vocab_size != config.language_model.speech_token_size:
        raise CheckpointError(
            f"{yaml_name} gives flow.vocab_size {config.flow.vocab_size}, but llm.speech_token_size "
            f"{config.language_model.speech_token_size}; use the file that belongs to these weights."
        )


def load_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a ``.pt`` file, memory-mapped, on the CPU. ``weights_only=True``: no code from the file is run.

    The entries ``epoch`` and ``step``, which upstream's training adds to its checkpoints, are left out.
    """
    import torch  # noqa: PLC0415  (this module must be importable without torch)

    find_file(path.parent, path.name)
    try:
        # Files in PyTorch's oldest format, which some training programs still write, cannot be mapped.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises many exception types for a damaged file
        raise CheckpointError(f"{path.name} could not be read ({type(error).__name__}); the file is damaged, download it again.") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path.name} does not hold a state dict; download it again.")
    tensors = {key: value for key, value in state.items() if key not in TRAINING_ENTRIES}
    for key, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"{path.name} has the entry {key}, which is no tensor; save the model's state dict alone.")
    return tensors


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


_MISMATCH = "use the yaml and the config.json that belong to these weights."


def _extra(state: Iterable[str], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    return sorted(key for key in state if key not in expected)
