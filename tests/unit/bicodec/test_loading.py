"""A model directory that does not fit is refused with one sentence that names the file and the key."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from bistream.audio.reference_tone import recording
from bistream.bicodec.config import CodecConfig, read_config
from bistream.bicodec.decoding import decode
from bistream.bicodec.shapes import COMPUTED, FILE_NAME, expected_shapes
from bistream.bicodec.voice import VoiceReader, load_reader
from bistream.bicodec.wav2vec2_weights import CONFIG_NAME, load_wav2vec2
from bistream.bicodec.wav2vec2_weights import FILE_NAME as WAV2VEC2_FILE
from bistream.bicodec.weights import load_codec
from bistream.errors import CheckpointError, InvalidInputError
from scripts._codec_files import FULL, TINY, wav2vec2_shapes, writers
from scripts._random_weights import Drawer
from scripts.make_checkpoint import write_all
from tests.unit.bicodec.tiny import tokens

CPU = torch.device("cpu")
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("codec")
    write_all(directory, writers(TINY, Drawer(seed=0)))
    return directory


@pytest.fixture
def model_dir(whole_dir: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole_dir, tmp_path / "codec"))


@pytest.fixture(scope="module")
def reader(whole_dir: Path) -> VoiceReader:
    return load_reader(whole_dir, CPU)


def change(path: Path, edit: Callable[[State], object]) -> None:
    is_pickle = path.suffix == ".bin"
    state = torch.load(path, weights_only=True) if is_pickle else load_file(path)
    edit(state)
    torch.save(state, path) if is_pickle else save_file(state, path)


def refusal(load: Callable[[Path, torch.device], object], model_dir: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(model_dir, CPU)
    sentence = caught.value.sentence
    assert "\n" not in sentence and len(re.findall(r"\.(?= [A-Z])", sentence)) == 0, sentence
    return sentence


def test_full_has_the_released_keys_and_size() -> None:
    shapes = expected_shapes(FULL.codec)
    assert len(shapes) == 840
    header = json.dumps({key: {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 0]} for key, shape in shapes.items()})
    released = 625_518_756
    assert 0 < released - 4 * sum(map(math.prod, shapes.values())) < 2 * len(header)
    of_wav2vec2 = wav2vec2_shapes(FULL)
    assert len(of_wav2vec2) == 429 and sum(map(math.prod, of_wav2vec2.values())) == 317_390_592


def test_sizes_are_read_back(model_dir: Path) -> None:
    assert load_codec(model_dir, CPU).config == TINY.codec
    assert load_wav2vec2(model_dir, CPU).config == TINY.wav2vec2
    assert read_config(model_dir).recording == TINY.codec.recording


def test_the_released_yaml_has_the_default_sizes(model_dir: Path) -> None:
    """As published; what only training reads is left out."""
    net = "{input_channels: 1024, vocos_dim: 384, vocos_intermediate_dim: 2048, vocos_num_layers: %d, out_channels: 1024"
    (model_dir / "BiCodec/config.yaml").write_text(
        f"""audio_tokenizer:
  mel_params: {{sample_rate: 16000, n_fft: 1024, win_length: 640, hop_length: 320, mel_fmin: 10, mel_fmax: null, num_mels: 128}}
  encoder: {net % 12}, sample_ratios: [1, 1]}}
  decoder: {{input_channel: 1024, channels: 1536, rates: [8, 5, 4, 2], kernel_sizes: [16, 11, 8, 4]}}
  quantizer: {{input_dim: 1024, codebook_size: 8192, codebook_dim: 8, commitment: 0.25, use_l2_normlize: True}}
  speaker_encoder: {{input_dim: 128, out_dim: 1024, latent_dim: 128, token_num: 32, fsq_levels: [4, 4, 4, 4, 4, 4], fsq_num_quantizers: 1}}
  prenet: {net % 12}, condition_dim: 1024, sample_ratios: [1, 1], use_tanh_at_final: False}}
  postnet: {net % 6}, use_tanh_at_final: False}}
"""
    )
    assert read_config(model_dir) == CodecConfig()


def test_random_weights_speak(reader: VoiceReader, model_dir: Path) -> None:
    voice = reader.read(np.tile(recording(), 2))
    assert len(set(voice.semantic_tokens.tolist())) > 10 and len(set(voice.global_tokens.tolist())) > 10
    audio = decode(load_codec(model_dir, CPU), [tokens(100)], [voice.global_tokens])[0]
    assert np.isfinite(audio).all() and 0.05 < audio.std() < 0.5 and np.abs(audio).max() < 1


@pytest.mark.parametrize("file", [FILE_NAME, WAV2VEC2_FILE])
def test_both_spellings_of_weight_norm(model_dir: Path, file: str) -> None:
    def rename(state: State) -> None:
        for key in [key for key in state if key.endswith(("weight_g", "weight_v"))]:
            new = "original0" if key.endswith("_g") else "original1"
            state[f"{key.rpartition('.')[0]}.parametrizations.weight.{new}"] = state.pop(key)

    load = load_codec if file == FILE_NAME else load_wav2vec2
    before = load(model_dir, CPU).state_dict()
    change(model_dir / file, rename)
    assert all(torch.equal(before[key], tensor) for key, tensor in load(model_dir, CPU).state_dict().items())


def test_computed_buffers_may_be_in_the_file(model_dir: Path) -> None:
    change(model_dir / FILE_NAME, lambda state: state.update({key: torch.zeros(3) for key in COMPUTED}))
    load_codec(model_dir, CPU)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda state: state.pop("decoder.model.1.block.1.weight_g"), "lacks the key decoder.model.1.block.1.weight_g"),
        (lambda state: state.pop("speaker_encoder.speaker_encoder.bn.num_batches_tracked"), "lacks the key speaker_encoder"),
        (lambda state: state.update({"quantizer.codebook.weight": torch.zeros(2, 2, 2)}), "key quantizer.codebook.weight has shape"),
        (lambda state: state.update({"decoder.model.9.bias": torch.zeros(3)}), "has the unexpected key decoder.model.9.bias"),
    ],
    ids=["missing", "missing buffer", "misshapen", "extra"],
)
def test_a_wrong_key_is_named(model_dir: Path, edit: Callable[[State], object], words: str) -> None:
    change(model_dir / FILE_NAME, edit)
    sentence = refusal(load_codec, model_dir)
    assert FILE_NAME in sentence and words in sentence


@pytest.mark.parametrize("kept", [0, 5, 500_000])
@pytest.mark.parametrize("file", [FILE_NAME, WAV2VEC2_FILE])
def test_a_file_that_was_cut_off(model_dir: Path, file: str, kept: int) -> None:
    path = model_dir / file
    path.write_bytes(path.read_bytes()[:kept])
    sentence = refusal(load_codec if file == FILE_NAME else load_wav2vec2, model_dir)
    assert Path(file).name in sentence and "damaged, download it again" in sentence


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder.layers.15.attention.k_proj.bias", None),
        ("encoder.pos_conv_embed.conv.weight_g", torch.zeros(1, 1, 3)),
        ("encoder.layers.3.attention.relative", torch.zeros(3)),
    ],
)
def test_wav2vec2_is_strict_about_what_it_needs(model_dir: Path, key: str, value: Tensor | None) -> None:
    def edit(state: State) -> None:
        state.pop(f"wav2vec2.{key}", None)
        if value is not None:
            state[f"wav2vec2.{key}"] = value

    change(model_dir / WAV2VEC2_FILE, edit)
    sentence = refusal(load_wav2vec2, model_dir)
    assert WAV2VEC2_FILE in sentence and key in sentence


def test_wav2vec2_needs_neither_the_last_layers_nor_what_training_needs(model_dir: Path) -> None:
    unused = ("wav2vec2.encoder.layers.16.", "quantizer.", "project_", "wav2vec2.encoder.layer_norm", "wav2vec2.masked")
    change(model_dir / WAV2VEC2_FILE, lambda state: [state.pop(key) for key in list(state) if key.startswith(unused)])
    load_wav2vec2(model_dir, CPU)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("encoder", "vocos_dim"), None, "lacks audio_tokenizer.encoder.vocos_dim"),
        (("encoder", "vocos_dim"), "384", "audio_tokenizer.encoder.vocos_dim '384'"),
        (("prenet",), None, "has no section audio_tokenizer.prenet"),
        (("decoder", "kernel_sizes"), [16, 11, 8, 5], "audio_tokenizer.decoder.kernel_sizes"),
        (("decoder", "rates"), [8, 5, 4, 4], "audio_tokenizer.decoder.kernel_sizes|latent_hop_length"),
        (("speaker_encoder", "fsq_num_quantizers"), 2, "fsq_num_quantizers 2, and 1 is needed"),
        (("quantizer", "input_dim"), 25, "are 24 and 25, and must be equal"),
        (("decoder", "channels"), 40, "a multiple of 16"),
    ],
)
def test_a_yaml_that_does_not_fit(model_dir: Path, place: tuple[str, ...], value: object, words: str) -> None:
    path = model_dir / "BiCodec/config.yaml"
    document = yaml.safe_load(path.read_text())
    section: Any = document["audio_tokenizer"]
    for name in place[:-1]:
        section = section[name]
    section.pop(place[-1]) if value is None else section.update({place[-1]: value})
    path.write_text(json.dumps(document))
    sentence = refusal(load_codec, model_dir)
    assert "BiCodec/config.yaml" in sentence and re.search(words, sentence)


@pytest.mark.parametrize("name", ["config.yaml", "BiCodec/config.yaml", FILE_NAME])
def test_a_missing_file(model_dir: Path, name: str) -> None:
    (model_dir / name).unlink()
    assert f"{name} is missing" in refusal(load_codec, model_dir)


@pytest.mark.parametrize("content", ["[", "3", "", "a: [1, 2"])
def test_a_yaml_that_is_none(model_dir: Path, content: str) -> None:
    (model_dir / "BiCodec/config.yaml").write_text(content)
    assert refusal(load_codec, model_dir).startswith("BiCodec/config.yaml")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("do_stable_layer_norm", False, "only True can be computed"),
        ("hidden_size", None, "lacks 'hidden_size'"),
        ("num_hidden_layers", 12, "num_hidden_layers is 12, and 16 are needed"),
        ("num_attention_heads", 5, "no multiple of the heads"),
    ],
)
def test_a_wav2vec2_of_another_kind(model_dir: Path, key: str, value: object, words: str) -> None:
    path = model_dir / CONFIG_NAME
    values = json.loads(path.read_text())
    values.pop(key) if value is None else values.update({key: value})
    path.write_text(json.dumps(values))
    sentence = refusal(load_wav2vec2, model_dir)
    assert CONFIG_NAME in sentence and words in sentence


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.ones(7999, np.float32), "lasts 0.500 s"),
        (np.zeros(16_000, np.float32), "is silent"),
        (np.full(16_000, np.nan, np.float32), "NaN or infinity"),
        (np.ones((2, 16_000), np.float32), "send one channel"),
    ],
)
def test_a_recording_that_says_nothing(reader: VoiceReader, samples: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        reader.read(samples)
