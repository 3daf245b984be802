"""What tests of CosyVoice2's own tiers know of a flow stage: its network is the U-Net's."""

from __future__ import annotations

from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.stage import FlowStage


def network_of(stage: FlowStage) -> FlowNetwork:
    assert isinstance(stage.runner.network, FlowNetwork)
    return stage.runner.network


def pages_of(stage: FlowStage) -> FlowPages:
    assert isinstance(stage.pages, FlowPages)
    return stage.pages
