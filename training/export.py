"""The trained networks as a CosyVoice2 model directory in float16: the released file names, keys and formats, ONNX included."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from bistream.checkpoints.alignment import ALIGNMENT_FILE, write_head
from bistream.checkpoints.config import CheckpointConfig
from bistream.families.cosyvoice2 import TEXT_DIRECTORY
from bistream.mel2wav import weights as vocoder_weights
from bistream.mel2wav.hift import HiFT
from bistream.token2mel import weights as flow_weights
from bistream.token2mel.flow import FlowNetwork
from bistream.voice.s3_network import S3Network
from scripts._checkpoint_text import checkpoint_yaml, qwen2_config_json
from scripts._onnx_models import speaker_encoder_model, speech_tokenizer_model
from training.language_model_task import EMBEDDING, TIED, LanguageModelNetwork
from training.layouts import GUIDED_HEADS, GUIDED_LAYERS
from training.loop import load_network
from training.sizes import Sizes
from training.speaker_task import SpeakerNetwork

_YAML_HEAD = "# Trained by training/make.py; the inference sections of a CosyVoice2 configuration.\n"
_TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


def flow_state(network: FlowNetwork, sizes: Sizes) -> dict[str, Tensor]:
    """``flow.pt`` of the served network: the inverse of ``token2mel.weights.build_network``."""
    parameters, taken, state = network.state_dict(), dict[str, int](), dict[str, Tensor]()
    for key, parameter, shape in flow_weights.file_layout(sizes.checkpoint.flow):
        begin = taken.get(parameter, 0)
        piece = parameters[parameter][begin : begin + shape[0]]
        taken[parameter] = begin + shape[0]
        state[key] = piece.transpose(1, 2).contiguous() if len(shape) == 3 else piece.clone()
    return state


def vocoder_state(network: HiFT, sizes: Sizes) -> dict[str, Tensor]:
    """``hift.pt``: where the file has a weight norm, direction = the weight and magnitude = its norm."""
    plain, state = network.state_dict(), dict[str, Tensor]()
    for key in vocoder_weights.expected_shapes(sizes.checkpoint.vocoder):
        parent, _, leaf = key.rpartition(".parametrizations.weight.")
        if not parent:
            state[key] = plain[key]
        elif leaf == "original1":
            state[key] = plain[f"{parent}.weight"]
        else:
            direction = plain[f"{parent}.weight"]
            state[key] = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
    return state


def language_model_state(network: LanguageModelNetwork) -> dict[str, Tensor]:
    """``llm.pt``: the two text matrices are one tensor, which the file holds once."""
    state = _halves({key: value for key, value in network.state().items() if key != TIED})
    return {**state, TIED: state[EMBEDDING]}


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The weights in float16, each with a node that makes it float32 again: half the file, the same arithmetic."""
    casts, graph = [], model.graph
    for item in graph.initializer:
        if item.data_type != TensorProto.FLOAT:
            continue
        name = item.name
        item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item).astype(np.float16), f"{name}.half"))
        casts.append(helper.make_node("Cast", [item.name], [name], name=f"/{name}/Cast", to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _halves(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().cpu().half().contiguous() for key, value in state.items()}


def exported_config(sizes: Sizes) -> CheckpointConfig:
    """The sizes, and which head of the language model was guided to the text token that is spoken."""
    model = sizes.checkpoint.language_model
    guided = max((layer for layer in GUIDED_LAYERS if layer < model.num_hidden_layers), default=None)
    head = None if guided is None else (guided, GUIDED_HEADS[0])
    return replace(sizes.checkpoint, language_model=replace(model, text_position_head=head))


def export(checkpoints: Path, bpe: Path, sizes: Sizes, directory: Path) -> dict[str, int]:
    """Write ``directory`` (replaced if it exists). checkpoints: the folder of ``loop.train``; bpe: one with the tokenizer's files.

    Returns the step of each network.
    """
    config = exported_config(sizes)
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    qwen = partial / TEXT_DIRECTORY
    qwen.mkdir(parents=True)
    text = checkpoint_yaml(config)
    (partial / "cosyvoice2.yaml").write_text(_YAML_HEAD + text.split("\n", 1)[1], encoding="utf-8")
    write_head(partial / ALIGNMENT_FILE, config.language_model.text_position_head)
    (qwen / "config.json").write_text(qwen2_config_json(config.language_model), encoding="utf-8")
    for name in _TOKENIZER_FILES:
        shutil.copy(bpe / TEXT_DIRECTORY / name, qwen / name)
    steps = {}
    language_model = LanguageModelNetwork(config.language_model)
    steps["language_model"] = load_network(checkpoints, "language_model", language_model)
    torch.save(language_model_state(language_model), partial / "llm.pt")
    flow = FlowNetwork(config.flow)
    steps["flow"] = load_network(checkpoints, "flow", flow)
    torch.save(_halves(flow_state(flow, sizes)), partial / "flow.pt")
    vocoder = HiFT(config.vocoder)
    steps["vocoder"] = load_network(checkpoints, "vocoder", vocoder)
    torch.save(_halves(vocoder_state(vocoder, sizes)), partial / "hift.pt")
    tokenizer = S3Network(sizes.tokenizer)
    steps["tokenizer"] = load_network(checkpoints, "tokenizer", tokenizer)
    weights = {key: value.numpy() for key, value in tokenizer.state_dict().items()}
    onnx.save(in_half(speech_tokenizer_model(weights)), str(partial / "speech_tokenizer_v2.onnx"))
    speaker = SpeakerNetwork(sizes.speaker_width, sizes.speaker_layers, config.flow.spk_embed_dim)
    steps["speaker"] = load_network(checkpoints, "speaker", speaker)
    onnx.save(in_half(speaker_model(speaker)), str(partial / "campplus.onnx"))
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    return steps


def speaker_model(network: SpeakerNetwork) -> onnx.ModelProto:
    convolutions = [parameter.detach().numpy() for name, parameter in network.named_parameters() if name.startswith("convolutions")]
    return speaker_encoder_model(convolutions, network.projection.detach().numpy())
