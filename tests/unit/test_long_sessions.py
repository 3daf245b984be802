"""Sessions several times as long as the flow's context: real stages and the orchestrator on a tiny random model, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.evaluation.seam_meter import joints_of, measure_seams
from bistream.local import LocalPipeline, VoiceChoice
from bistream.mel2wav.stage import VocoderHop
from bistream.token2mel.stage import FlowHop
from bistream.token2wav.renderer import FLOW_PAGES, PoolUse, sizes_of
from bistream.token2wav.speech_stages import SpeechStages
from bistream.types import VoicePrompt
from tests.formats import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SAMPLE_RATE, SAMPLES_PER_TOKEN
from tests.sounds import speech_like

CONTEXT_S = 3.0
HOPS = 14  # of a second each
TEXT = "One more, then."


def configuration(model_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(
        model_dir=str(model_dir),
        device="cpu",
        dtype="float32",
        num_threads=1,
        max_sessions=4,
        kv_cache_tokens=16384,
        flow_state_mb=256,
        flow_context_s=CONTEXT_S,
        condition_recordings=False,  # the state of a longer voice would stay in the pages that are counted
    )


@pytest.fixture(scope="module")
def pipeline(tiny_model_dir: Path) -> Iterator[LocalPipeline]:
    with LocalPipeline(configuration(tiny_model_dir)) as pipeline:
        yield pipeline


def voice() -> VoiceChoice:
    return VoiceChoice(speech_like(), "A tone.")


def flow_pages(pipeline: LocalPipeline) -> PoolUse:
    return pipeline._token2wav._service._renderer.pools[FLOW_PAGES]


def test_a_session_beyond_the_context_speaks_to_its_end(pipeline: LocalPipeline) -> None:
    """With all its samples, text positions that never go back, and its memory free again."""
    chunks = list(pipeline.stream(iter(TEXT.split(" ")), voice()))
    seconds = sum(len(chunk.waveform) for chunk in chunks) / SAMPLE_RATE
    characters = len(TEXT.replace(" ", ""))
    assert seconds > 2 * CONTEXT_S
    assert sum(len(chunk.waveform) for chunk in chunks) % SAMPLES_PER_TOKEN == 0
    for earlier, later in itertools.pairwise(chunks):
        assert earlier.text_consumed <= later.text_consumed <= later.text_position <= characters
        assert earlier.text_position <= later.text_position
    assert chunks[-1].text_consumed == chunks[-1].text_position == characters
    pages = flow_pages(pipeline)
    assert pages.used == 0 and pages.most == CONTEXT_S


def test_a_session_that_is_left_beyond_the_context_gives_its_memory_back(pipeline: LocalPipeline) -> None:
    chunks, heard = pipeline.stream(iter([TEXT]), voice()), 0
    for chunk in chunks:
        heard += len(chunk.waveform)
        assert flow_pages(pipeline).used <= CONTEXT_S
        if heard > 1.5 * CONTEXT_S * SAMPLE_RATE:
            break
    chunks.close()  # type: ignore[attr-defined]
    assert list(pipeline.stream(iter(["Hi."]), voice()))  # the worker has freed the first one before it computes this
    assert flow_pages(pipeline).used == 0


def test_where_it_forgets_is_no_louder_and_no_sharper_than_where_it_does_not(tiny_model_dir: Path) -> None:
    """The seam meter at all joints of hops: those after which the flow knows half as much are within the range of the others."""
    checkpoint = read_config(tiny_model_dir)
    stages = SpeechStages.load(replace(configuration(tiny_model_dir), flow_context_s=6.0), checkpoint, sizes_of(checkpoint))
    random = np.random.default_rng(0)
    prompt = VoicePrompt(
        prompt_text="",
        speech_tokens=random.integers(0, 100, CHUNK_TOKENS).astype(np.int32),
        speech_feat=random.standard_normal((2 * CHUNK_TOKENS, checkpoint.flow.output_size)).astype(np.float32),
        speaker_embedding=random.standard_normal(checkpoint.flow.spk_embed_dim).astype(np.float32),
    )
    waveforms, mels, forgot, before = [], [], [], 0
    with torch.inference_mode():
        flow, vocoder = stages.flow.open(prompt), stages.vocoder.open(0)
        for hop in range(HOPS):
            tokens = random.integers(0, 100, CHUNK_TOKENS + (LOOKAHEAD_TOKENS if hop == 0 else 0)).tolist()
            (mel,) = stages.flow.hop([FlowHop(flow, tokens, hop == HOPS - 1)])
            assert not isinstance(mel, BistreamError), mel
            if len(flow.tokens) <= before:
                forgot.append(hop)
            before = len(flow.tokens)
            mels.append(mel)
            waveforms += stages.vocoder.hop([VocoderHop(vocoder, mel, hop == HOPS - 1)])
        offline = stages.vocoder.synthesize(torch.cat(mels, dim=1), 0)
    joints = measure_seams(np.concatenate(waveforms), offline, joints_of([len(waveform) for waveform in waveforms])).joints
    seams = [joints[hop - 1] for hop in forgot]
    others = [joint for joint in joints if joint not in seams]
    assert len(seams) >= 2 and len(others) >= 8, forgot
    assert max(joint.click_db for joint in seams) <= max(joint.click_db for joint in others) + 0.1
    assert max(joint.level_step_db for joint in seams) <= max(joint.level_step_db for joint in others) + 0.1
