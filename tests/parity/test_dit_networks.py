"""The parts of CosyVoice3's flow against the reference's outputs; tolerances are those of the set's README."""

from __future__ import annotations

import hashlib

import pytest
import torch

from bistream.token2mel.dit.estimator import CONV_HISTORY_FRAMES, rotate, rotation
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.weights import build_modulation, build_network, expected_shapes
from bistream.token2mel.flow_matching import noise_buffer, time_steps
from bistream.token2mel.memory import BlankStepMemory, attention_bias
from tests.parity import golden3

PART_TOLERANCE = 1e-5
ESTIMATOR_TOLERANCE = 2e-4
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> DitFlow:
    return build_network(golden3.tensors("flow_weights"), golden3.flow_config(), CPU, torch.float32)


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = PART_TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_expected_shapes_are_those_of_the_file() -> None:
    found = {key: tuple(tensor.shape) for key, tensor in golden3.tensors("flow_weights").items()}
    assert expected_shapes(golden3.flow_config()) == found


def test_noise_is_the_references_buffer() -> None:
    expected = golden3.read_json("flow_info.json")["rand_noise"]
    slices = golden3.tensors("flow_noise")
    noise = noise_buffer(golden3.flow_config().output_size)[None]
    assert list(noise.shape) == expected["shape"]
    assert hashlib.sha256(noise.numpy().astype("<f4").tobytes()).hexdigest() == expected["sha256_float32_le"]
    assert torch.equal(noise[:, :, :64], slices["first_64"])
    assert torch.equal(noise[:, :, 7000:7008], slices["at_7000"])
    assert torch.equal(noise[:, :, -8:], slices["last_8"])


@pytest.mark.parametrize("with_context", [True, False])
@torch.inference_mode()
def test_lookahead(network: DitFlow, with_context: bool) -> None:
    data = golden3.tensors("flow_parts")
    x, context = data["lookahead_in"], data["lookahead_context"]
    behind = context if with_context else torch.zeros_like(context)
    found = network.lookahead(torch.nn.functional.pad(torch.cat([x, behind], dim=1), (0, 0, 2, 0)), torch.tensor([0]))
    assert_close(found, data["lookahead_out_context" if with_context else "lookahead_out_final"])


def test_rotation() -> None:
    data = golden3.tensors("flow_parts")
    angles = rotation(torch.tensor([0]), data["rotary_in"].shape[1], golden3.flow_config().dit.dim_head)
    assert_close(angles.repeat_interleave(2, dim=-1), data["rotary_angles"])
    assert_close(rotate(data["rotary_in"], angles), data["rotary_out"])


def test_the_files_rotation_rates_are_those_that_are_computed() -> None:
    rates = golden3.tensors("flow_weights")["decoder.estimator.rotary_embed.inv_freq"]
    assert_close(rotation(torch.tensor([1]), 1, golden3.flow_config().dit.dim_head)[0, 0], rates, 1e-7)


@torch.inference_mode()
def test_times() -> None:
    data, config = golden3.tensors("flow_parts"), golden3.flow_config()
    times, sizes = time_steps(config.n_timesteps)
    assert_close(torch.tensor([*times, times[-1] + sizes[-1]]), data["t_span"], 1e-6)
    modulation = build_modulation(golden3.tensors("flow_weights"), config.dit)
    assert_close(modulation.embed(torch.tensor(times)), data["time_embedding"])


@torch.inference_mode()
def test_input_embedding(network: DitFlow) -> None:
    data = golden3.tensors("flow_parts")
    speaker = data["input_spks"][:, None, :].expand_as(data["input_x"])
    inputs = torch.cat([data["input_x"], data["input_cond"], data["input_mu"], speaker], dim=-1)
    found = network.matching.estimator.input(inputs, BlankStepMemory(CONV_HISTORY_FRAMES))
    assert_close(found, data["input_out"])


@pytest.mark.parametrize("streaming", [0, 1])
@pytest.mark.parametrize("mask_name, output_name", [("mask", "out"), ("mask_ragged", "out_ragged")])
@torch.inference_mode()
def test_estimator(network: DitFlow, mask_name: str, output_name: str, streaming: int) -> None:
    """Padded frames are not compared: the reference gives them values that nothing reads."""
    data, config = golden3.tensors("flow_estimator"), golden3.flow_config().dit
    mask = data[mask_name]
    rows, _, frames = mask.shape
    lengths = mask[:, 0].sum(dim=1).long()
    assert torch.equal(mask[:, 0].bool(), torch.arange(frames) < lengths[:, None])  # the real frames come first
    bias = attention_bias(
        lengths,
        torch.zeros_like(lengths),
        frames=frames,
        table_chunks=0,
        chunk_frames=config.static_chunk_size,
        left_context_chunks=0,
        streaming=bool(streaming),
        dtype=torch.float32,
    )
    speaker = data["spks"][:, :, None].expand(-1, -1, frames)
    inputs = torch.cat([data["x"], data["cond"], data["mu"], speaker], dim=1).transpose(1, 2)
    modulations = build_modulation(golden3.tensors("flow_weights"), config)(data["t"])
    memory = [BlankStepMemory(CONV_HISTORY_FRAMES) for _ in range(rows)]
    out = torch.cat(
        [
            network.matching.estimator(inputs[row : row + 1], modulations[row], torch.tensor([0]), bias[row : row + 1], memory[row])
            for row in range(rows)
        ]
    )
    expected = data[f"{output_name}_streaming_{streaming}"]
    assert_close(out.transpose(1, 2) * mask, expected * mask, ESTIMATOR_TOLERANCE)
