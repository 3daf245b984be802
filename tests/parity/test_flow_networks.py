"""The flow's encoder, estimator and noise against the reference's outputs."""

from __future__ import annotations

import hashlib

import pytest
import torch

from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.flow_matching import noise_buffer
from bistream.token2mel.memory import BlankEncoderMemory, BlankStepMemory, attention_bias
from bistream.token2mel.weights import build_network, expected_shapes
from tests.parity import golden

NETWORK_TOLERANCE = 1e-4
ENCODER_CASES = sorted(name for name in golden.tensors("flow_encoder") if name.startswith("out_"))


@pytest.fixture(scope="module")
def network() -> FlowNetwork:
    config = golden.checkpoint_config().flow
    return build_network(golden.tensors("flow_weights"), config, torch.device("cpu"), torch.float32)


def test_expected_shapes_are_those_of_the_file() -> None:
    found = {key: tuple(tensor.shape) for key, tensor in golden.tensors("flow_weights").items()}
    assert expected_shapes(golden.checkpoint_config().flow) == found


def test_noise_is_the_references_buffer() -> None:
    expected = golden.read_json("flow_info.json")["rand_noise"]
    slices = golden.tensors("flow_noise")
    noise = noise_buffer(golden.checkpoint_config().flow.output_size)[None]
    assert list(noise.shape) == expected["shape"]
    assert hashlib.sha256(noise.numpy().astype("<f4").tobytes()).hexdigest() == expected["sha256_float32_le"]
    assert torch.equal(noise[:, :, :64], slices["first_64"])
    assert torch.equal(noise[:, :, 7000:7008], slices["at_7000"])
    assert torch.equal(noise[:, :, -8:], slices["last_8"])


def _bias(lengths: torch.Tensor, frames: int, chunk_frames: int, streaming: bool) -> torch.Tensor:
    return attention_bias(
        lengths,
        torch.zeros_like(lengths),
        frames=frames,
        table_chunks=0,
        chunk_frames=chunk_frames,
        left_context_chunks=0,
        streaming=streaming,
        dtype=torch.float32,
    )


@pytest.mark.parametrize("name", ENCODER_CASES)
@torch.inference_mode()
def test_encoder(network: FlowNetwork, name: str) -> None:
    data = golden.tensors("flow_encoder")
    config = golden.checkpoint_config().flow
    lookahead, chunk, ratio = config.pre_lookahead_len, config.encoder.static_chunk_size, config.token_mel_ratio
    expected, streaming = data[name], name.endswith("streaming_1")
    tokens = expected.shape[1] // ratio
    both = torch.cat([data["xs"], data["context"]], dim=1)[:, : tokens + lookahead]
    vectors = torch.nn.functional.pad(both, (0, 0, 2, 0))
    present = torch.arange(vectors.shape[1]) >= 2
    if name.startswith("out_final"):
        present &= torch.arange(vectors.shape[1]) < 2 + tokens
    lengths = torch.tensor([tokens])
    out = network.encoder(
        vectors,
        present[None],
        torch.tensor([0]),
        _bias(lengths, tokens, chunk, streaming),
        _bias(lengths * ratio, tokens * ratio, chunk * ratio, streaming),
        BlankEncoderMemory(),
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=NETWORK_TOLERANCE)


@pytest.mark.parametrize("streaming", [0, 1])
@pytest.mark.parametrize("mask_name, output_name", [("mask", "out"), ("mask_ragged", "out_ragged")])
@torch.inference_mode()
def test_estimator(network: FlowNetwork, mask_name: str, output_name: str, streaming: int) -> None:
    data = golden.tensors("flow_estimator")
    mask = data[mask_name]
    frames = mask.shape[-1]
    lengths = mask[:, 0].sum(dim=1).long()
    assert torch.equal(mask[:, 0].bool(), torch.arange(frames) < lengths[:, None])  # the real frames come first
    estimator = network.matching.estimator
    speaker = data["spks"][:, :, None].expand(-1, -1, frames)
    inputs = torch.cat([data["x"], data["mu"], speaker, data["cond"]], dim=1).transpose(1, 2)
    bias = _bias(lengths, frames, golden.checkpoint_config().flow.estimator.static_chunk_size, bool(streaming))
    out = estimator(inputs, estimator.time_biases(data["t"]), bias, BlankStepMemory())
    torch.testing.assert_close(out.transpose(1, 2) * mask, data[f"{output_name}_streaming_{streaming}"], rtol=0, atol=NETWORK_TOLERANCE)
