"""CosyVoice3's recorded graphs by solver step: what whole graphs give, in any turns of batches of equal and of different sizes."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.gpu.interruptions import Speakers, in_turns
from tests.gpu.token2mel import test_graph_dit as graphs

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def speakers() -> list[Speakers]:
    return [
        Speakers([graphs.prompt(75, 1), graphs.prompt(28, 4)], [(18, 40), (25, 13), (7, 30)], seed=1),
        Speakers([graphs.prompt(0, 2)], [(18,), (25,), (3,)], seed=2),
        Speakers([graphs.prompt(131, 3), graphs.prompt(10, 5)], [(20, 18), (25, 25), (4, 9)], seed=3),
    ]


@pytest.mark.parametrize("steps", [(1,), (2, 1), (1, 3, 2), (1, 1000)], ids=str)
def test_batches_in_turns_are_the_batches_alone(steps: tuple[int, ...]) -> None:
    expected = in_turns(graphs.graph_stage(), speakers(), (1000,))
    found = in_turns(graphs.graph_stage(), speakers(), steps)
    for mels, exact in zip(found, expected, strict=True):
        for mel, other in zip(mels, exact, strict=True):
            assert graphs.snr_db(mel, other) > graphs.REPEAT_DB


def test_graphs_by_step_are_close_to_the_plain_network() -> None:
    found = graphs.speak(graphs.graph_stage(), graphs.VOICES, graphs.HOPS)
    for mel, exact in zip(found, graphs.exact_mels(), strict=True):
        assert graphs.snr_db(mel, exact) > graphs.FLOAT16_DB
