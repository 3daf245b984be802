"""What the golden utterance of a served repository depends on: the checkpoint, which it must follow, and the environment, which may
change it a little. Read from the models' ``config.pbtxt``, the checkpoint's files, Triton's metrics and this host.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bistream.contract.fields import AUDIO_TOKENIZER, COSYVOICE2_BISTREAM, LLM_BISTREAM, SPEAKER_EMBEDDING, TOKEN2WAV
from bistream.families.registry import FAMILIES, YAML_NAMES
from bistream.keeper.golden import RECIPE
from bistream.keeper.host import GoldenError
from bistream.store.fingerprint import Fingerprint, code_hash, files_hash, gpus, processor, versions
from bistream.voice.made_with import SPEAKER_ENCODER_FILE

Parameters = Mapping[str, Mapping[str, str]]  # by model
_TEXT_FILES = tuple(dict.fromkeys(name for family in FAMILIES for name in family.text_files))
CHECKPOINT_FILES = {  # what each model reads of its model_dir, in any family
    AUDIO_TOKENIZER.name: tuple(family.speech_tokenizer_file for family in FAMILIES),
    SPEAKER_EMBEDDING.name: (SPEAKER_ENCODER_FILE,),
    LLM_BISTREAM.name: ("llm.pt", *YAML_NAMES, *_TEXT_FILES),
    TOKEN2WAV.name: ("flow.pt", "hift.pt", *YAML_NAMES),
}
_RESULT_SETTINGS = ("final_mode", "left_context_chunks")  # change what is computed, whatever computes it
HOP_SETTINGS = ("first_hop_tokens", "max_hop_chunks")  # of the front model: how it cuts a whole text, which the audio follows
_FRONT_MODEL_SETTINGS = (*HOP_SETTINGS, "condition_recordings")
_ENVIRONMENT_SETTINGS = ("device", "dtype", "engine", "num_threads", "onnx_providers", "speech_tokenizer", "speaker_encoder")
_PACKAGES = ("torch", "triton", "onnxruntime", "onnxruntime-gpu", "tensorrt_llm")
_TIER = re.compile(r"^bistream_tier\{([^}]*)\} 1(?:\.0+)?$", re.MULTILINE)
_LABEL = re.compile(r'(stage|tier)="(\w+)"')


def checkpoint_files(parameters: Parameters) -> list[Path]:
    """Every file of the checkpoint that is there."""
    folders = ((Path(parameters[model].get("model_dir", "")), names) for model, names in CHECKPOINT_FILES.items() if model in parameters)
    return sorted({folder / name for folder, names in folders for name in names if (folder / name).is_file()})


def check_archives(paths: Sequence[Path]) -> None:
    """Read the weights of a checkpoint once before its first utterance becomes the one to compare with. Raises ``GoldenError``."""
    for path in filter(zipfile.is_zipfile, paths):
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise GoldenError(f"{path.name} is damaged ({damaged} does not match its checksum); download it again.")


def checkpoint(parameters: Parameters) -> Fingerprint:
    """Raises ``CheckpointError``."""
    facts = {"recipe": RECIPE}
    for model, names in CHECKPOINT_FILES.items():
        values = parameters.get(model, {})
        folder = Path(values.get("model_dir", ""))
        facts[model] = files_hash(folder, [name for name in names if (folder / name).is_file()])
        facts |= {f"{model} {name}": values[name] for name in _RESULT_SETTINGS if name in values}
    front_model = parameters.get(COSYVOICE2_BISTREAM.name, {})
    facts |= {f"{COSYVOICE2_BISTREAM.name} {name}": front_model[name] for name in _FRONT_MODEL_SETTINGS if name in front_model}
    return Fingerprint(facts)


def hardware() -> str:
    """GPUs and processors of this host."""
    return " + ".join((*gpus(), f"{len(os.sched_getaffinity(0))} x {processor()}"))


def environment(parameters: Parameters, tiers: str, of_hardware: str) -> Fingerprint:
    """tiers: ``tiers_of`` the server's metrics. of_hardware: ``hardware`` of the host."""
    facts = {"hardware": of_hardware, "tiers": tiers, "code": code_hash()}
    for model, values in sorted(parameters.items()):
        settings = {name: values[name] for name in _ENVIRONMENT_SETTINGS if name in values}
        if folder := values.get("engine_dir", ""):
            settings["engine_dir"] = _folder_hash(Path(folder))
        facts |= {f"{model} {name}": value for name, value in settings.items()}
    return Fingerprint({**facts, **versions(*_PACKAGES)})


def tiers_of(metrics: str) -> str:
    """``flow plain, vocoder plain`` from Triton's page of metrics; empty where it has none."""
    pairs = (dict(_LABEL.findall(labels)) for labels in _TIER.findall(metrics))
    return ", ".join(sorted(f"{pair['stage']} {pair['tier']}" for pair in pairs if len(pair) == 2))


def _folder_hash(folder: Path) -> str:
    return files_hash(folder, [path.name for path in folder.iterdir() if path.is_file()]) if folder.is_dir() else "none"
