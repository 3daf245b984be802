"""Training goes on from a voice that was exported: its networks become the checkpoints that travel, as if they had just been saved.

Only the served networks are there; discriminators and decoders, where a stage has them, begin anew. A language model that reads another
text tokenizer than the corpus's is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from bistream.checkpoint import QWEN_DIRECTORY, load_state_dict
from bistream.checkpoint_config import LanguageModelConfig, VocoderConfig
from bistream.mel2wav.weights import load_hift
from bistream.model_card import MODEL_CARD_FILE
from bistream.token2mel.weights import load_network
from bistream.voice.s3_weights import state_dict_from_onnx
from training.language_model_data import LONGEST_UTTERANCE_S
from training.language_model_task import LanguageModelNetwork
from training.loop import Folders
from training.sizes import Sizes, size_name

TITLE = "a demonstration, trained in training/ on synthetic speech; no product voice"
UNKNOWN_MARKS = '"()[]{}'  # training/wordnet.py and texts.py have none
RECORD = MODEL_CARD_FILE  # beside the networks: which sizes, which steps
_VOCABULARY = (f"{QWEN_DIRECTORY}/vocab.json", f"{QWEN_DIRECTORY}/merges.txt")
_CPU = torch.device("cpu")


def write_record(directory: Path, sizes: Sizes, steps: dict[str, int], voices: tuple[str, ...]) -> None:
    """voices: names of those that were trained on."""
    # bistream/model_card.py: the corpus is English and has no instructions
    card = {
        "unknown_marks": UNKNOWN_MARKS,
        "title": TITLE,
        "languages": ["en"],
        "can_be_instructed": False,
        "longest_utterance_s": LONGEST_UTTERANCE_S,
    }
    text = json.dumps({"size": size_name(sizes), "steps": steps, "voices": list(voices), **card}, indent=1)
    (directory / RECORD).write_text(f"{text}\n", encoding="utf-8")


def read_record(directory: Path) -> dict[str, Any]:
    """Raises ``FileNotFoundError``."""
    path = directory / RECORD
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name a voice that training/make.py has exported.")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def adopt(directory: Path, sizes: Sizes, folders: Folders, bpe: Path) -> dict[str, int]:
    """Write the checkpoints that travel from a model directory. Returns the step of each. Raises ``ValueError``, ``FileNotFoundError``.

    bpe: the folder with the text tokenizer of the corpus. A language model that reads another one is left out, and removed.
    """
    record = read_record(directory)
    if record["size"] != size_name(sizes):
        raise ValueError(f"{directory} has networks of the size {record['size']}; add --size {record['size']}.")
    config = sizes.checkpoint
    networks = {
        "flow": load_network(directory, config.flow, _CPU, torch.float32).state_dict(),
        "vocoder": _vocoder(directory, config.vocoder),
        "tokenizer": state_dict_from_onnx(directory / "speech_tokenizer_v2.onnx"),
        "speaker": _speaker(directory / "campplus.onnx"),
    }
    if _have_same_vocabulary(directory, bpe):
        networks["language_model"] = _language_model(directory, config.language_model)
    else:
        (folders.travel / "language_model.pt").unlink(missing_ok=True)
    steps = {name: record["steps"][name] for name in networks}
    for name, state in networks.items():
        halves = {key: value.half() if value.dtype == torch.float32 else value for key, value in state.items()}
        torch.save({"step": steps[name], "modules": {"network": halves}}, folders.travel / f"{name}.pt")
    return steps


def _have_same_vocabulary(directory: Path, bpe: Path) -> bool:
    """Raises ``FileNotFoundError``."""
    for name in _VOCABULARY:
        if not (bpe / name).exists():
            raise FileNotFoundError(f"{bpe / name} does not exist; run the stage prepare first.")
    return all((bpe / name).read_bytes() == (directory / name).read_bytes() for name in _VOCABULARY)


def _language_model(directory: Path, config: LanguageModelConfig) -> dict[str, Tensor]:
    network = LanguageModelNetwork(config)
    network.adopt(load_state_dict(directory / "llm.pt"))
    return network.state_dict()


def _vocoder(directory: Path, config: VocoderConfig) -> dict[str, Tensor]:
    return load_hift(directory, config, _CPU).state_dict()


def _speaker(path: Path) -> dict[str, Tensor]:
    found = {
        item.name.removesuffix(".half"): torch.from_numpy(numpy_helper.to_array(item).copy()) for item in onnx.load(path).graph.initializer
    }
    layers = sorted((name for name in found if name.startswith("convolution.")), key=lambda name: int(name.split(".")[1]))
    return {"projection": found["projection"], **{f"convolutions.{number}.weight": found[name] for number, name in enumerate(layers)}}
