"""Exports the tier of code that runs each network as a Prometheus gauge on the server's metrics port: ``bistream_tier{stage,tier} 1``.

Called by the ``model.py`` files whose process runs networks. The reason for plain PyTorch is logged, one line per network.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

logger = logging.getLogger(__name__)

NAME = "bistream_tier"
DESCRIPTION = "1 for the tier of code (graphs, plain) that computes a network"  # equal in all processes: one family


class TierMetrics:
    """Exported until ``close``, which must come before the process ends: metrics are removed through the stub."""

    def __init__(self, pb_utils: Any, choices: Sequence[TierChoice]) -> None:
        self._metrics: list[Any] = []
        try:
            family = pb_utils.MetricFamily(name=NAME, description=DESCRIPTION, kind=pb_utils.MetricFamily.GAUGE)
            for choice in choices:
                metric = family.Metric(labels={"stage": choice.stage.replace(" ", "_"), "tier": choice.tier.value})
                metric.set(1)
                self._metrics.append(metric)
            self._metrics.append(family)  # last: freed after its metrics
        except Exception as error:  # missing metrics must not keep a model from serving
            logger.warning("the tiers are not exported as metrics: %s", error)

    def close(self) -> None:
        """Idempotent."""
        while self._metrics:
            self._metrics.pop(0)
