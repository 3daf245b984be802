"""CosyVoice3's flow and vocoder together against the reference's complete loops, through the service.

Tolerances of the set's README: 1e-2 absolute and at least 45 dB signal-to-error. Every case runs through the service (one session per
case, all at once), so batching and threads are tested too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.causal.weights import build_hift
from bistream.token2mel.dit.weights import build_network
from bistream.token2mel.stage import FlowStage
from bistream.token2wav.renderer import RendererHop, sizes_of
from bistream.token2wav.service import Token2Wav
from bistream.token2wav.speech_stages import SpeechStages
from tests.formats import LOOKAHEAD_TOKENS, SAMPLES_PER_MEL_FRAME, SAMPLES_PER_TOKEN
from tests.parity import golden3
from tests.parity import test_token2wav as of_a_case
from tests.parity.test_causal_hift import rule_noise
from tests.reference_flow import ReferenceFlowStage

CASES: list[dict[str, Any]] = golden3.read_json("token2wav.json")["cases"]
STREAMS = [case for case in CASES if not case["mode"].startswith("offline")]
OFFLINE = [case for case in CASES if case["mode"].startswith("offline")]
EARLIER_SAMPLES = 4 * SAMPLES_PER_MEL_FRAME - 4  # than the reference's chunk
CPU = torch.device("cpu")
WAIT_S = 300.0  # longer than a busy machine takes
tensor = partial(of_a_case.tensor, data=golden3)
prompt_of = partial(of_a_case.prompt_of, data=golden3)
hops_of = partial(of_a_case.hops_of, data=golden3)
assert_same_audio = partial(of_a_case.assert_same_audio, least_db=45.0)


@cache
def stages(final_mode: str, kind: str) -> SpeechStages:
    """final_mode: of the last hop: ours (streaming) or the reference's. kind: the source's noise, zero or that of the set's rule."""
    checkpoint = CheckpointConfig(flow=golden3.flow_config(), vocoder=golden3.vocoder_config())
    config = RuntimeConfig(device="cpu", flow_state_mb=512, drain_timeout_s=0.0)
    network = build_network(golden3.tensors("flow_weights"), golden3.flow_config(), CPU, torch.float32)
    hift = build_hift(golden3.tensors("hift_weights"), golden3.vocoder_config(), CPU)
    noise = hift.m_source.merge_noise(rule_noise(0, 10 * 24_000)) if kind == "rule" else torch.zeros(1)
    vocoder = CausalVocoderStage(config, golden3.vocoder_config(), noise, hift)
    flow = FlowStage if final_mode == "streaming" else ReferenceFlowStage
    return SpeechStages(flow(config, checkpoint, network=network), vocoder, sizes_of(checkpoint))


@pytest.fixture(scope="module")
def services() -> Iterator[dict[tuple[str, str], Token2Wav]]:
    config = RuntimeConfig(device="cpu", drain_timeout_s=0.0)
    keys = [("reference", "zero"), ("streaming", "zero"), ("reference", "rule")]
    found = {key: Token2Wav(config, renderer=stages(*key)) for key in keys}
    yield found
    for service in found.values():
        service.close()


def mode_of(case: dict[str, Any]) -> tuple[str, str]:
    _, _, streaming, _ = case["calls"][-1]
    return "streaming" if streaming else "reference", "rule" if "rule_noise" in case["mode"] else "zero"


def test_streams(services: dict[tuple[str, str], Token2Wav]) -> None:
    """Library and Triton schedules; the sessions run side by side. Each chunk but the last comes with four frames more."""
    futures = [[services[mode_of(case)].hop(hop) for hop in hops_of(case)] for case in STREAMS]
    assert {case["mode"] for case in STREAMS} >= {"stream", "stream_to_the_end", "triton_exponential", "stream_rule_noise"}
    for case, pending in zip(STREAMS, futures, strict=True):
        chunks = [future.result(timeout=WAIT_S) for future in pending]
        ends, expected = np.cumsum([len(chunk) for chunk in chunks]), np.cumsum(case["chunk_samples"])
        assert (ends[:-1] == expected[:-1] + EARLIER_SAMPLES).all() and ends[-1] == expected[-1]
        assert_same_audio(np.concatenate(chunks), tensor(case["case"], f"{case['mode']}_audio"))


@pytest.mark.parametrize("case", OFFLINE, ids=lambda case: case["mode"])
def test_offline(services: dict[tuple[str, str], Token2Wav], case: dict[str, Any]) -> None:
    speed = float(case["mode"].removeprefix("offline_speed")) if "speed" in case["mode"] else 1.0
    waveform = services["reference", "zero"].synthesize(tensor(case["case"], "token").tolist(), prompt_of(case["case"]), speed=speed)
    assert_same_audio(waveform.result(timeout=WAIT_S), tensor(case["case"], f"{case['mode']}_audio"))


def cut(token_ids: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[Sequence[int], bool]]:
    """Hops that make the speech up to each of ``ends``, then the rest."""
    sent = 0
    for end in ends:
        yield token_ids[sent : end + LOOKAHEAD_TOKENS], False
        sent = end + LOOKAHEAD_TOKENS
    yield token_ids[sent:], True


@settings(max_examples=6, deadline=None)
@given(hops=st.lists(st.integers(1, 3), max_size=6), is_odd=st.booleans())
def test_chunk_aligned_hops_do_not_change_the_audio(hops: list[int], is_odd: bool) -> None:
    """``stream_to_the_end`` with other hops than the reference's: the same audio."""
    name = "p37_n106" if is_odd else "p0_n183"
    token_ids, prompt, renderer = tensor(name, "token").tolist(), prompt_of(name), stages("streaming", "zero")
    pad = -len(prompt.speech_tokens) % 25
    ends = [pad + 25 * int(chunks) for chunks in np.cumsum(hops)]
    ends = [end for end in ends if end + LOOKAHEAD_TOKENS < len(token_ids)]
    rendering, pieces = renderer.open(prompt, 0), []
    for piece, is_last in cut(token_ids, ends):
        (waveform,) = renderer.begin([RendererHop(rendering, piece, is_last)]).finish()
        assert isinstance(waveform, np.ndarray)
        pieces.append(waveform)
    rendering.close()
    audio = np.concatenate(pieces)
    assert len(audio) == SAMPLES_PER_TOKEN * len(token_ids)
    assert_same_audio(audio, tensor(name, "stream_to_the_end_audio"))
