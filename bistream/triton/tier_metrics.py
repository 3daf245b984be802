"""Which tier of code serves each network, as Prometheus gauges on the server's metrics port: ``bistream_tier{stage,tier} 1``.

Called by the ``model.py`` files whose process computes networks. Why no faster tier serves is in the log, in one line per network.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

logger = logging.getLogger(__name__)

NAME = "bistream_tier"
DESCRIPTION = "1 for the tier of code (kernels, graphs, plain) that computes a network"  # the same in every process: one family


class TierMetrics:
    """Shown until ``close``, which must come before the process ends: a metric is taken back through the stub."""

    def __init__(self, pb_utils: Any, choices: Sequence[TierChoice]) -> None:
        self._metrics: list[Any] = []
        try:
            family = pb_utils.MetricFamily(name=NAME, description=DESCRIPTION, kind=pb_utils.MetricFamily.GAUGE)
            for choice in choices:
                metric = family.Metric(labels={"stage": choice.stage.replace(" ", "_"), "tier": choice.tier.value})
                metric.set(1)
                self._metrics.append(metric)
            self._metrics.append(family)  # last: it goes after its metrics
        except Exception as error:  # what operators see must not keep a model from serving
            logger.warning("the tiers are not shown as metrics: %s", error)

    def close(self) -> None:
        """Idempotent."""
        while self._metrics:
            self._metrics.pop(0)
