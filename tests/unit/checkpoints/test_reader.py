"""The model directory is read strictly: sizes from yaml parsed as data, tensors by exact key and shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bistream.checkpoints.config import CheckpointConfig, FlowConfig
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict, read_config
from bistream.errors import CheckpointError

# The inference sections in the released form: tags, references, a product of references, YAML 1.2 floats.
RELEASED_YAML = """
__set_seed1: !apply:random.seed [1986]
sample_rate: 24000
spk_embed_dim: 192
chunk_size: 25
token_mel_ratio: 2
qwen_pretrain_path: ''
llm: !new:cosyvoice.llm.llm.Qwen2LM
    llm_input_size: 896
    speech_token_size: 6561
    mix_ratio: [5, 15]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: 0.8
        top_k: 25
        win_size: 10
        tau_r: 0.1
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: 512
    spk_embed_dim: !ref <spk_embed_dim>
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: 512
        static_chunk_size: !ref <chunk_size>
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                inference_cfg_rate: 0.7
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            channels: [256]
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    upsample_rates: [8, 5, 3]
    istft_params:
        n_fft: 16
        hop_len: 4
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        cond_channels: 512
hifigan: !new:cosyvoice.hifigan.hifigan.HiFiGan
    generator: !ref <hift>
"""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "cosyvoice2.yaml").write_text(RELEASED_YAML, encoding="utf-8")
    (tmp_path / "CosyVoice-BlankEN").mkdir()
    (tmp_path / "CosyVoice-BlankEN/config.json").write_text(json.dumps({"hidden_size": 896, "vocab_size": 151936}), encoding="utf-8")
    return tmp_path


def test_released_yaml_gives_the_sizes_of_the_released_model(model_dir: Path) -> None:
    assert read_config(model_dir) == CheckpointConfig()


def test_trained_models_may_bring_their_own_sampler_and_solver(model_dir: Path) -> None:
    path = model_dir / "cosyvoice2.yaml"
    changed = RELEASED_YAML.replace("tau_r: 0.1", "tau_r: 1.0").replace("win_size: 10", "win_size: 25").replace("top_k: 25", "top_k: 40")
    changed = changed.replace("top_p: 0.8", "top_p: 0.95").replace("sigma_min: 1e-06", "n_timesteps: 6")
    path.write_text(changed, encoding="utf-8")
    config = read_config(model_dir)
    sampler = config.language_model
    assert (sampler.top_p, sampler.top_k, sampler.win_size, sampler.tau_r) == (0.95, 40, 25, 1.0)
    assert config.flow == replace(FlowConfig(), n_timesteps=6)


@pytest.mark.parametrize("steps", ["0", "-1", "101", "2.5", "ten", "null"])
def test_a_wrong_number_of_solver_steps_is_named(model_dir: Path, steps: str) -> None:
    changed = RELEASED_YAML.replace("sigma_min: 1e-06", f"n_timesteps: {steps}")
    (model_dir / "cosyvoice2.yaml").write_text(changed, encoding="utf-8")
    with pytest.raises(CheckpointError, match="n_timesteps is .*, not a number from 1 to 100"):
        read_config(model_dir)


@pytest.mark.parametrize(
    "broken", ["", "llm: [", "llm: 1\nflow: 2\nhift: 3", "sample_rate: 24000", "llm: !ref <nothing>\nflow: {}\nhift: {}"]
)
def test_a_damaged_yaml_is_named(model_dir: Path, broken: str) -> None:
    (model_dir / "cosyvoice2.yaml").write_text(broken, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cosyvoice2\.yaml"):
        read_config(model_dir)


def test_missing_files_are_named(model_dir: Path) -> None:
    with pytest.raises(CheckpointError, match=r"hift\.pt is missing"):
        find_file(model_dir, "hift.pt")
    (model_dir / "CosyVoice-BlankEN/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"CosyVoice-BlankEN/config\.json is missing"):
        read_config(model_dir)


def test_a_pickled_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llm.pt"
    torch.save({"weight": Path("x")}, path)
    with pytest.raises(CheckpointError, match=r"llm\.pt could not be read"):
        load_state_dict(path)


EXPECTED = {"a.weight": (2, 3), "b.bias": (4,)}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a.weight": (2, 3)}, ["llm.pt", "b.bias", "[4]"]),
        ({"a.weight": (2, 3), "b.bias": (4,), "c": (1,)}, ["llm.pt", "unexpected", "c", "[1]", "none"]),
        ({"a.weight": (3, 2), "b.bias": (4,)}, ["llm.pt", "a.weight", "[3, 2]", "[2, 3]"]),
    ],
    ids=["missing", "extra", "misshapen"],
)
def test_a_wrong_key_is_one_error_with_file_key_and_shapes(state: dict[str, tuple[int, ...]], words: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_state_dict("llm.pt", {key: torch.zeros(shape) for key, shape in state.items()}, EXPECTED)
    assert all(word in str(caught.value) for word in words)


def test_any_other_entry_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.zeros(2, 3), "optimizer": {"lr": 0.1}}, tmp_path / "llm.pt")
    with pytest.raises(CheckpointError, match=r"llm\.pt has the entry optimizer, which is no tensor"):
        load_state_dict(tmp_path / "llm.pt")
