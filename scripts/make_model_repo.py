#!/usr/bin/env python3
"""Writes a fresh model repository that tritonserver can load: templates/ filled, model_repo/ copied, swapped in by rename.

    make_model_repo.py --model-dir CosyVoice2-0.5B --out build/model_repo --set max_sessions=128 --set decoupled_mode=False

A value comes from --set MODEL.KEY=VALUE, else --set KEY=VALUE (every model that has this placeholder), else the profile,
else templates/defaults.json (settings of Triton alone), else the default of bistream.config.RuntimeConfig. Without max_sessions it is
chosen on a GPU, with flow_state_mb and reserved_speech_s, by the memory that is free there (bistream/sizing.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.checkpoints.files import family_of
from bistream.checkpoints.model_card import read_model_card
from bistream.checkpoints.model_dir import check_model_dir
from bistream.config import RuntimeConfig
from bistream.contract.fields import CONTRACTS, COSYVOICE2_BISTREAM, LLM_BISTREAM, TOKEN2WAV
from bistream.contract.room import room_of
from bistream.conversion.records import MADE_OF, file_sha256, read_record
from bistream.errors import BistreamError, ConfigError
from bistream.keeper.gpu_sharing import DRIVER
from bistream.sizing import Gpu, choose, costs_of
from bistream.text2token.engine_settings import with_cache
from bistream.text2token.tensorrt_llm.preflight import CACHE_PER_ADMITTED, check_installed
from scripts.fill_template import TemplateError, fill, parse_settings, placeholders

ROOT = Path(__file__).resolve().parents[1]
HEADER = "# Generated from templates/{model}/config.pbtxt by scripts/make_model_repo.py; do not edit."
# Clients may read them.
OF_THE_CHECKPOINT = ("model_family", "languages", "can_be_instructed", "sample_rate", "tokens_per_second", "text_unit")
SIZED = (LLM_BISTREAM.name, TOKEN2WAV.name, COSYVOICE2_BISTREAM.name)  # models whose limits follow from the memory of the GPU
PROFILES = ("tensorrt_llm", "torch")  # which engine runs the language model; the models of the repository are the same in both


def template_names() -> list[str]:
    """Names of all models, from their templates."""
    return sorted(path.parent.name for path in (ROOT / "templates").glob("*/config.pbtxt"))


def model_names(model_dir: str | Path = "") -> list[str]:
    """Names of the models that serve a model directory. Raises ``CheckpointError`` where it does not tell its family."""
    others = {contract.name for contract in CONTRACTS if contract.family not in ("", family_of(model_dir).name)}
    return [name for name in template_names() if name not in others]


def default_values() -> dict[str, str]:
    """Default of every placeholder; ``model_dir`` has none."""
    runtime = {field.name: _text(field.default) for field in dataclasses.fields(RuntimeConfig) if field.name != "model_dir"}
    server = json.loads((ROOT / "templates" / "defaults.json").read_text(encoding="utf-8"))
    return {**runtime, **server}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def split_settings(settings: Mapping[str, str], models: Iterable[str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Settings for all models, and settings of single models (``model.key``)."""
    shared: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {model: {} for model in models}
    for key, value in settings.items():
        model, dot, name = key.partition(".")
        if not dot:
            shared[key] = value
        elif model in own:
            own[model][name] = value
        else:
            raise ConfigError(f"--set {key}: no model {model} in the repository; there are {', '.join(sorted(own))}.")
    return shared, own


def model_values(models: Iterable[str], settings: Mapping[str, str], profile: str) -> dict[str, dict[str, str]]:
    """The values of every model's placeholders. A setting that no template uses is an error."""
    wanted = {model: placeholders(read_template(model)) for model in models}
    shared, own = split_settings(settings, wanted)
    unused = sorted(key for key in shared if not any(key in names for names in wanted.values()))
    if unused:
        raise ConfigError(
            f"--set {unused[0]}: no template has this placeholder; there are {', '.join(sorted(set().union(*wanted.values())))}."
        )
    for name in OF_THE_CHECKPOINT:
        if any(name in given for given in (shared, *own.values())):
            raise ConfigError(f"--set {name}: it follows from the model directory; leave it out.")
    base = {**default_values(), "engine": profile, **shared}
    if not base.get("model_dir"):
        raise ConfigError("The model directory is not set; give --model-dir.")
    values = {}
    for model, names in wanted.items():
        known = {key: value for key, value in base.items() if key in names}
        values[model] = {**known, **own[model]}
    if "token2wav" in values and not any("shared_kv_cache_tokens" in given for given in (shared, own["token2wav"])):
        values["token2wav"]["shared_kv_cache_tokens"] = str(shared_kv_cache_tokens(values))
    return values


def with_limits(models: Sequence[str], settings: dict[str, str], profile: str) -> dict[str, str]:
    """``settings`` and, where they leave ``max_sessions`` open and a GPU computes, the limits that its memory allows. Raises as
    ``model_values`` and ``sizing.choose``."""
    if not set(SIZED) <= set(models) or any(key.rpartition(".")[2] == "max_sessions" for key in settings):
        return settings
    values = model_values(models, settings, profile)
    language_model, speech, front = (values[name] for name in SIZED)
    gpus = [gpu_of(model["device"]) for model in (language_model, speech)]
    if gpus == [None, None]:
        return settings
    given = {name: speech[name] for name in ("model_dir", "dtype", "flow_state_mb", "solver_steps", "left_context_chunks")}
    config = RuntimeConfig.from_strings({**given, "reserved_speech_s": front["reserved_speech_s"]})
    if int(language_model["kv_cache_tokens"]):
        config = dataclasses.replace(config, kv_cache_tokens=kv_cache_tokens(language_model))
    limits = choose(config, costs_of(config, kv_cache_tokens({**language_model, "max_sessions": "1", "kv_cache_tokens": "0"})), *gpus)
    chosen = {"max_sessions": limits.sessions, "flow_state_mb": limits.flow_state_mb, "reserved_speech_s": limits.reserved_speech_s}
    return {**settings, **{key: str(value) for key, value in chosen.items() if value is not None}}


def gpu_of(device: str) -> Gpu | None:
    """Where a model computes with this setting, and the memory that is free there; None: on the CPU. Loads torch where there is a driver.
    Raises ``ConfigError`` for a GPU that does not exist."""
    if device == "cpu" or not DRIVER.exists():
        return None
    from bistream.gpu.device import resolve_device  # noqa: PLC0415
    from bistream.token2mel.pages import memory_bytes  # noqa: PLC0415

    found = resolve_device(device)
    return Gpu(found.index or 0, memory_bytes(found)[0]) if found.type == "cuda" else None


def shared_kv_cache_tokens(values: Mapping[str, Mapping[str, str]]) -> int:
    """Positions of the language model's KV cache that ``token2wav`` leaves memory for: 0 where they have different devices."""
    model = values.get("llm_bistream")
    if model is None or model["device"] != values["token2wav"]["device"]:
        return 0
    return kv_cache_tokens(model)


def kv_cache_tokens(model: Mapping[str, str]) -> int:
    """Positions that the language model's KV cache has memory for. model: its settings."""
    check_runtime_config(model)
    model_dir = model["model_dir"]
    config = RuntimeConfig.from_strings({name: model[name] for name in ("kv_cache_tokens", "max_sessions", "max_session_tokens")})
    sized = with_cache(config, read_model_card(model_dir).longest_utterance_s, family_of(model_dir).audio_format.tokens_per_second)
    return sized.kv_cache_tokens * (CACHE_PER_ADMITTED if model["engine"] == "tensorrt_llm" else 1)


def check_runtime_config(values: Mapping[str, str]) -> None:
    """Reject values that the model would reject when it loads. Raises ``ConfigError``."""
    fields = {field.name for field in dataclasses.fields(RuntimeConfig)}
    RuntimeConfig.from_strings({key: value for key, value in values.items() if key in fields})


def check_values(values: Mapping[str, Mapping[str, str]]) -> None:
    """Reject what the server would refuse after minutes and in the midst of its log. Raises ``ConfigError`` and ``CheckpointError``."""
    language_model = values.get("llm_bistream", {})
    if language_model.get("engine") == "tensorrt_llm":
        check_installed()
    for model_dir in sorted({given["model_dir"] for given in values.values() if "model_dir" in given}):
        check_model_dir(Path(model_dir))
    check_merged(language_model)


def check_merged(model: Mapping[str, str]) -> None:
    """Reject a merged checkpoint of another language model than that of the model directory, which would speak with the wrong one; one that
    no conversion has made is taken as it is. model: settings of ``llm_bistream``. Raises ``ConfigError``."""
    if model.get("engine") != "tensorrt_llm" or not model["engine_dir"]:
        return
    made_of = read_record(Path(model["engine_dir"])).get(MADE_OF)
    weights = Path(model["model_dir"]) / family_of(model["model_dir"]).language_model_file
    if made_of is not None and made_of != file_sha256(weights):
        raise ConfigError(
            f"The merged checkpoint {model['engine_dir']} was not made of {weights}; make it again with "
            "PROFILE=tensorrt_llm bash run.sh 1 1, or set engine_dir to the one that was."
        )


def read_template(model: str) -> str:
    path = ROOT / "templates" / model / "config.pbtxt"
    if not path.is_file():
        raise ConfigError(f"templates/{model}/config.pbtxt does not exist; models are {', '.join(template_names())}.")
    return path.read_text(encoding="utf-8")


def make(out: Path, values: Mapping[str, Mapping[str, str]]) -> None:
    """Write the repository next to ``out`` and swap it in. An existing ``out`` must be one that this script made."""
    if out.exists():
        check_generated(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (out.with_name(f".{out.name}.{kind}.{os.getpid()}") for kind in ("new", "old"))
    try:
        for model, model_value in values.items():
            write_model(fresh / model, model, model_value)
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_model(folder: Path, model: str, values: Mapping[str, str]) -> None:
    known = placeholders(read_template(model))
    values = {**values, **{name: value for name, value in of_the_checkpoint(values["model_dir"]).items() if name in known}}
    check_runtime_config(values)
    text = fill(read_template(model), values, origin=f"templates/{model}/config.pbtxt")
    shutil.copytree(ROOT / "model_repo" / model, folder, ignore=shutil.ignore_patterns("__pycache__"))
    summary = [f"#   {key} = {value}" for key, value in sorted(values.items())]
    (folder / "config.pbtxt").write_text("\n".join([HEADER.format(model=model), *summary, text]), encoding="utf-8")


def of_the_checkpoint(model_dir: str) -> dict[str, str]:
    """Values of ``OF_THE_CHECKPOINT``."""
    card, family = read_model_card(model_dir), family_of(model_dir)
    languages, rates = ",".join(sorted(card.languages)), family.audio_format
    told = (family.name, languages, card.can_be_instructed, rates.sample_rate, rates.tokens_per_second, family.text_unit)
    return dict(zip(OF_THE_CHECKPOINT, map(_text, told), strict=True))


def check_generated(out: Path) -> None:
    """Raises ``ConfigError`` unless everything in ``out`` was written by this script."""
    for entry in sorted(out.iterdir()):
        config = entry / "config.pbtxt"
        if not config.is_file() or not config.read_text(encoding="utf-8").startswith(HEADER.format(model=entry.name)):
            raise ConfigError(f"{out} holds {entry.name}, which this script did not make; choose another --out or remove it.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "model_repo", help="folder to write (default build/model_repo)")
    parser.add_argument("--model-dir", help="a directory of CosyVoice2, CosyVoice3 or Spark-TTS, or one made by scripts/make_checkpoint.py")
    parser.add_argument("--profile", choices=PROFILES, default="torch", help="engine of the language model (default torch)")
    parser.add_argument("--models", default="", help="only these, separated by commas (default: all that serve the directory)")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="[MODEL.]KEY=VALUE", help="one value; may be repeated"
    )
    options = parser.parse_args(arguments)
    try:
        settings = parse_settings(options.settings)
        if options.model_dir:
            settings["model_dir"] = str(Path(options.model_dir).resolve())
        models = [name for name in options.models.split(",") if name] or model_names(settings.get("model_dir", ""))
        values = model_values(models, with_limits(models, settings, options.profile), options.profile)
        check_values(values)
        make(options.out, values)
    except (TemplateError, BistreamError, OSError) as error:
        print(f"make_model_repo.py: {error}", file=sys.stderr)
        return 1
    room = room_of(values.get(COSYVOICE2_BISTREAM.name, {}))
    print(f"made {options.out} with {', '.join(models)}" + (f"; it {room}" if room else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
