"""The codec on a GPU: hops in recorded graphs are those of the eager network, whatever else is in the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bistream.bicodec.network import BiCodec
from bistream.bicodec.recorded import ROWS, WINDOW_TOKENS
from bistream.bicodec.stream import SpeechDecoder, TokenPush
from bistream.families.spark import SPARK
from scripts.make_checkpoint import make_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
LOOKAHEAD = 10


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> BiCodec:
    from bistream.bicodec.weights import load_codec  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("spark")
    make_checkpoint(folder / "model", "tiny", seed=0, family=SPARK.name)
    return load_codec(folder / "model", torch.device("cuda"))


@pytest.mark.parametrize("sessions", [1, 3, ROWS[0], ROWS[0] + 1])
def test_hops_are_those_of_the_network(network: BiCodec, sessions: int) -> None:
    random = np.random.default_rng(sessions)
    plain, recorded = SpeechDecoder(network), SpeechDecoder(network, records=True)
    voices = random.integers(0, 256, (sessions, 32)).astype(np.int32)
    states = [[decoder.open(voice) for voice in voices] for decoder in (plain, recorded)]
    hops = ((LOOKAHEAD, (LOOKAHEAD + 1, WINDOW_TOKENS[0])), (None, (70, 90)), (None, (50, 51)), (None, (100, 200)), (0, (0, 10)))
    for lookahead, bounds in hops:
        counts = random.integers(*bounds, sessions)
        tokens = [random.integers(0, 512, count).astype(np.int32) for count in counts]
        heard = [
            decoder.push([TokenPush(state, row, lookahead=lookahead) for state, row in zip(own, tokens, strict=True)])
            for decoder, own in zip((plain, recorded), states, strict=True)
        ]
        for expected, found in zip(*heard, strict=True):
            assert len(found) == len(expected) and len(found) > 0
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
