"""``EngineConformance`` on the TensorRT-LLM engine over the fake library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.text2token.engine_conformance import Bench, EngineConformance
from tests.unit.text2token.tensorrt_llm.bench import PortBench


class TestTensorRtLlmEngine(EngineConformance):
    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        port_bench = PortBench()
        yield port_bench.bench()
        port_bench.close()
