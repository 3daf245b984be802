"""Loading ``hift.pt``: every form of the same weights, and one clear error for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from bistream.errors import CheckpointError
from bistream.mel2wav.weights import canonical_keys, fold_weight_norm, load_hift
from tests.unit.mel2wav import tiny

CPU = torch.device("cpu")


def saved(directory: Path, state: Mapping[str, object]) -> Path:
    torch.save(state, directory / "hift.pt")
    return directory


def test_folding_is_what_weight_norm_computes() -> None:
    conv = weight_norm(torch.nn.ConvTranspose1d(6, 4, 5))
    with torch.no_grad():
        conv.parametrizations.weight.original0.mul_(1.7)
    folded = fold_weight_norm(conv.state_dict())
    assert set(folded) == {"weight", "bias"}
    torch.testing.assert_close(folded["weight"], conv.weight.detach())


@pytest.mark.parametrize("spelling", ["prefixed", "old"])
def test_other_forms_load_the_same_network(tmp_path: Path, spelling: str) -> None:
    state = tiny.random_state()
    if spelling == "prefixed":
        renamed = {f"generator.{key}": value for key, value in state.items()}
    else:
        old = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
        renamed = {}
        for key, value in state.items():
            for new_name, old_name in old.items():
                key = key.replace(new_name, old_name)
            renamed[key] = value
    assert set(renamed) != set(state)
    assert set(canonical_keys(renamed)) == set(state)
    expected = load_hift(saved(tmp_path, state), tiny.CONFIG, CPU).state_dict()
    found = load_hift(saved(tmp_path, renamed), tiny.CONFIG, CPU).state_dict()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_missing_an_extra_and_a_misshapen_key_are_named(tmp_path: Path) -> None:
    state = tiny.random_state()
    key = "conv_pre.bias"
    for broken, words in (
        ({name: value for name, value in state.items() if name != key}, [key, "[32]"]),
        ({**state, "surplus": torch.zeros(3)}, ["surplus", "[3]"]),
        ({**state, key: torch.zeros(33)}, [key, "[33]", "[32]"]),
        ({**state, "sampling_rate": 3}, ["sampling_rate"]),
    ):
        with pytest.raises(CheckpointError) as caught:
            load_hift(saved(tmp_path, broken), tiny.CONFIG, CPU)
        assert all(word in str(caught.value) for word in ["hift.pt", *words])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"hift\.pt"):
        load_hift(tmp_path, tiny.CONFIG, CPU)
