"""The gauges of the tier in use: one per network, gone when the model is closed, never an obstacle to serving."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bistream.gpu.tier import Tier, TierChoice
from bistream.triton.tier_metrics import NAME, TierMetrics
from tests.unit.triton.fakes import FakeMetricFamily, FakePbUtils

CHOICES = (
    TierChoice("language model", Tier.GRAPHS, "NVIDIA Test", ()),
    TierChoice("flow", Tier.PLAIN, "NVIDIA Test", ("recorded graphs need 2 frames per token",)),
)


def test_every_choice_is_a_gauge_until_the_model_closes() -> None:
    metrics = TierMetrics(FakePbUtils(), CHOICES)
    assert FakeMetricFamily.shown == [
        (NAME, {"stage": "language_model", "tier": "graphs"}, 1),
        (NAME, {"stage": "flow", "tier": "plain"}, 1),
    ]
    metrics.close()
    assert FakeMetricFamily.shown == []
    metrics.close()


def test_a_gauge_that_cannot_be_made_does_not_keep_the_model_from_loading(caplog: pytest.LogCaptureFixture) -> None:
    class Disabled(FakePbUtils):
        class MetricFamily:
            GAUGE = 1

            def __init__(self, **arguments: Any) -> None:
                raise RuntimeError("no such metric")

    with caplog.at_level(logging.WARNING):
        TierMetrics(Disabled(), CHOICES).close()
    assert "no such metric" in caplog.text
