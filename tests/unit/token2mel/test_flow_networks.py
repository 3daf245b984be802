"""Parts of the flow that can be checked without golden data: weights, masks, positions, schedule."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.config import DitFlowConfig
from bistream.errors import CheckpointError
from bistream.token2mel.dit import weights as dit_weights
from bistream.token2mel.flow_matching import noise_buffer
from bistream.token2mel.memory import attention_bias
from bistream.token2mel.weights import build_network
from tests.unit.token2mel.flow_fixtures import TINY, TINY_DIT
from tests.unit.token2mel.random_weights import random_state

CPU = torch.device("cpu")


def test_a_full_transformer_has_the_released_number_of_keys_and_parameters() -> None:
    shapes = dit_weights.expected_shapes(DitFlowConfig())
    assert len(shapes) == 330
    assert sum(math.prod(shape) for shape in shapes.values()) == 332_257_088 + 32


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda state: state.pop("encoder.after_norm.bias"), ["flow.pt", "encoder.after_norm.bias", "[24]"]),
        (lambda state: state.update(epoch=torch.zeros(1)), ["flow.pt", "epoch", "[1]"]),
        (lambda state: state.update({"encoder_proj.bias": torch.zeros(7)}), ["flow.pt", "encoder_proj.bias", "[7]", "[80]"]),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(damage: object, words: list[str]) -> None:
    state = random_state(TINY)
    assert callable(damage)
    damage(state)
    with pytest.raises(CheckpointError) as caught:
        build_network(state, TINY, CPU, torch.float32)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": dataclasses.replace(TINY.encoder, static_chunk_size=20)},
        {"estimator": dataclasses.replace(TINY.estimator, channels=(16, 16))},
        {"estimator": dataclasses.replace(TINY.estimator, in_channels=240)},
        {"estimator": dataclasses.replace(TINY.estimator, out_channels=40)},
        {"encoder": dataclasses.replace(TINY.encoder, attention_heads=5)},
        {"input_size": 12},
    ],
)
def test_sizes_of_another_architecture_are_refused(change: dict[str, object]) -> None:
    config = dataclasses.replace(TINY, **change)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="The yaml is at fault"):
        build_network(random_state(TINY), config, CPU, torch.float32)


@pytest.mark.parametrize("change", [{"mel_dim": 64}, {"mu_dim": 40}, {"dim": 40}, {"dim_head": 7}, {"static_chunk_size": 51}])
def test_sizes_of_another_dit_are_refused(change: dict[str, int]) -> None:
    sizes = dataclasses.replace(TINY_DIT, dit=dataclasses.replace(TINY_DIT.dit, **change))
    with pytest.raises(CheckpointError, match="The yaml is at fault"):
        dit_weights.build_network({}, sizes, CPU, torch.float32)


rows = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=3)


@given(rows, st.integers(0, 2), st.booleans(), st.sampled_from([4, 10]))
def test_attention_bias_is_the_chunk_rule(shapes: list[tuple[int, int]], left: int, streaming: bool, chunk: int) -> None:
    frames, table = max(length for length, _ in shapes), max(context for _, context in shapes)
    bias = attention_bias(
        torch.tensor([length for length, _ in shapes]),
        torch.tensor([context for _, context in shapes]),
        frames=frames,
        table_chunks=table,
        chunk_frames=chunk,
        left_context_chunks=left,
        streaming=streaming,
        dtype=torch.float32,
    )
    assert bias.shape == (len(shapes), 1, frames, table * chunk + frames)
    for row, (length, context) in enumerate(shapes):
        for query in range(length):
            for column in range(table * chunk + frames):
                key = column - table * chunk
                visible = -context * chunk <= key < length
                if streaming:
                    visible &= key // chunk <= query // chunk and (not left or key // chunk >= query // chunk - left)
                assert bias[row, 0, query, column] == (0 if visible else -math.inf)
    assert bool((bias == 0).any(dim=-1).all())  # a row of minus infinities would turn padding into NaN


def test_noise_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    noise_buffer(2)
    assert torch.equal(torch.rand(3), expected)
