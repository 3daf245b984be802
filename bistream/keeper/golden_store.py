"""Keeps golden utterances: a folder for each checkpoint, in it a file for each environment that has spoken it.

An environment (tier, GPU, versions, our code) that has not spoken a checkpoint yet is compared with the newest one that has, and then
gets a file of its own. Another checkpoint finds no folder, so a deliberate change needs no order. What both depend on is read from the
models' ``config.pbtxt``, the checkpoint's files, the models' metrics and this host.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import safetensors
import safetensors.numpy

from bistream.contract.fields import AUDIO_TOKENIZER, COSYVOICE2_BISTREAM, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV
from bistream.families.registry import FAMILIES, YAML_NAMES
from bistream.keeper.golden import RECIPE, Golden
from bistream.keeper.host import GoldenError
from bistream.processes.whole_file import write_whole
from bistream.store.fingerprint import Fingerprint, code_hash, files_hash, from_json, gpus, processor, versions

Parameters = Mapping[str, Mapping[str, str]]  # by model
SUFFIX = ".safetensors"
_TEXT_FILES = tuple(dict.fromkeys(name for family in FAMILIES for name in family.text_files))
_NETWORKS = tuple(name for family in FAMILIES if family.has_codec for name in family.network_files)
CHECKPOINT_FILES = {  # what each model reads of its model_dir, in any family
    AUDIO_TOKENIZER.name: tuple(family.speech_tokenizer_file for family in FAMILIES),
    SPEAKER_EMBEDDING.name: tuple(dict.fromkeys(family.speaker_file for family in FAMILIES)),
    LLM_BISTREAM.name: ("llm.pt", *_NETWORKS, *YAML_NAMES, *_TEXT_FILES),
    TOKEN2WAV.name: ("flow.pt", "hift.pt", *_NETWORKS, *YAML_NAMES),
}
_RESULT_SETTINGS = ("left_context_chunks", "watermark")  # change what is computed, whatever computes it
# Of the front model: how it cuts a whole text, which the audio follows.
HOP_SETTINGS = ("first_hop_tokens", "first_lookahead_tokens", "max_hop_chunks")
_FRONT_MODEL_SETTINGS = (*HOP_SETTINGS, "condition_recordings")
_ENVIRONMENT_SETTINGS = ("device", "dtype", "engine", "num_threads", "speech_tokenizer", "speaker_encoder")
_PACKAGES = ("torch", "triton", "onnxruntime", "tensorrt_llm")
_TIER = re.compile(r"^bistream_tier\{([^}]*)\} 1(?:\.0+)?$", re.MULTILINE)
_LABEL = re.compile(r'(stage|tier)="(\w+)"')


@dataclass(frozen=True)
class StoredGolden:
    golden: Golden
    environment: Fingerprint
    path: Path


class GoldenStore:
    """Of one checkpoint, below ``directory``."""

    def __init__(self, directory: Path, checkpoint: Fingerprint) -> None:
        self.folder = directory / "golden" / checkpoint.digest

    def find(self, environment: Fingerprint) -> StoredGolden | None:
        """The one of this environment, else the newest of another; ``None`` for a new checkpoint. Damaged files do not count."""
        others = sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime, reverse=True)
        return next((stored for path in (self._path(environment), *others) if (stored := _read(path)) is not None), None)

    def save(self, golden: Golden, environment: Fingerprint) -> Path:
        """Raises ``OSError``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(environment)
        metadata = {"environment": json.dumps(dict(environment.facts))}
        write_whole(path, safetensors.numpy.save(asdict(golden), metadata=metadata))
        return path

    def _path(self, environment: Fingerprint) -> Path:
        return self.folder / f"{environment.digest}{SUFFIX}"


def _read(path: Path) -> StoredGolden | None:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            arrays = {field.name: file.get_tensor(field.name) for field in fields(Golden)}
            environment = from_json(json.loads(file.metadata()["environment"]))
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
        return None
    return StoredGolden(Golden(**arrays), environment, path)


def check_archives(parameters: Parameters) -> None:
    """Read the weights of a checkpoint once before its first utterance becomes the one to compare with. Raises ``GoldenError``."""
    paths = {folder / name for model in CHECKPOINT_FILES for folder, names in [_files(parameters, model)] for name in names}
    for path in filter(zipfile.is_zipfile, sorted(paths)):
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise GoldenError(f"{path.name} is damaged ({damaged} does not match its checksum); download it again.")


def checkpoint(parameters: Parameters) -> Fingerprint:
    """Raises ``CheckpointError``."""
    facts = {"recipe": RECIPE}
    for model in CHECKPOINT_FILES:
        facts[model] = files_hash(*_files(parameters, model))
        facts |= _settings(parameters, model, _RESULT_SETTINGS)
    return Fingerprint({**facts, **_settings(parameters, COSYVOICE2_BISTREAM.name, _FRONT_MODEL_SETTINGS)})


def _files(parameters: Parameters, model: str) -> tuple[Path, list[str]]:
    """The folder and those files of the checkpoint that are there."""
    folder = Path(parameters.get(model, {}).get("model_dir", ""))
    return folder, [name for name in CHECKPOINT_FILES[model] if (folder / name).is_file()]


def _settings(parameters: Parameters, model: str, names: tuple[str, ...]) -> dict[str, str]:
    values = parameters.get(model, {})
    return {f"{model} {name}": values[name] for name in names if name in values}


def hardware() -> str:
    """GPUs and processors of this host."""
    return " + ".join((*gpus(), f"{len(os.sched_getaffinity(0))} x {processor()}"))


def environment(parameters: Parameters, tiers: str, of_hardware: str) -> Fingerprint:
    """tiers: ``tiers_of`` the models' metrics. of_hardware: ``hardware`` of the host."""
    facts = {"hardware": of_hardware, "tiers": tiers, "code": code_hash()}
    for model, values in sorted(parameters.items()):
        facts |= _settings(parameters, model, _ENVIRONMENT_SETTINGS)
        if (folder := Path(values.get("engine_dir") or "/none")).is_dir():
            facts[f"{model} engine_dir"] = files_hash(folder, [path.name for path in folder.iterdir() if path.is_file()])
    return Fingerprint({**facts, **versions(*_PACKAGES)})


def tiers_of(metrics: str) -> str:
    """``flow plain, vocoder plain`` from a page of metrics; empty where it has none."""
    pairs = (dict(_LABEL.findall(labels)) for labels in _TIER.findall(metrics))
    return ", ".join(sorted(f"{pair['stage']} {pair['tier']}" for pair in pairs if len(pair) == 2))
