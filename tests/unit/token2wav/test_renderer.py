"""The speech renderer's interface: requirements on a checkpoint, and a service on a renderer without any network."""

from __future__ import annotations

import pytest

from bistream.checkpoints.config import CheckpointConfig, EstimatorConfig, FlowConfig, VocoderConfig
from bistream.errors import CheckpointError
from bistream.token2wav.renderer import RendererSizes, sizes_of
from tests.formats import SAMPLE_RATE, SPEECH_TOKENS_PER_SECOND

OTHER_SIZES = RendererSizes(SAMPLE_RATE, samples_per_frame=480, frames_per_token=2, mel_bins=96, speaker_embedding_size=256)


def test_sizes_come_from_the_checkpoint() -> None:
    sizes = sizes_of(CheckpointConfig())
    assert (sizes.mel_bins, sizes.speaker_embedding_size) == (80, 192)
    assert sizes.tokens_per_second == SPEECH_TOKENS_PER_SECOND
    wide = CheckpointConfig(
        flow=FlowConfig(output_size=96, spk_embed_dim=256, estimator=EstimatorConfig(out_channels=96)),
        vocoder=VocoderConfig(in_channels=96),
    )
    assert sizes_of(wide) == OTHER_SIZES


@pytest.mark.parametrize(
    ("flow", "vocoder", "words"),
    [
        (FlowConfig(output_size=96), VocoderConfig(), "96 mel bins"),
        (FlowConfig(), VocoderConfig(in_channels=96), "expects 96"),
        (FlowConfig(), VocoderConfig(sampling_rate=22050), "22050 Hz"),
        (FlowConfig(), VocoderConfig(upsample_rates=(8, 8)), "256 samples per mel frame"),
        (FlowConfig(token_mel_ratio=4), VocoderConfig(), "4 frames per token"),
    ],
)
def test_a_checkpoint_at_other_rates_is_refused(flow: FlowConfig, vocoder: VocoderConfig, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        sizes_of(CheckpointConfig(flow=flow, vocoder=vocoder))
