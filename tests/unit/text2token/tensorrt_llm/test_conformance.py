"""``EngineConformance`` on the TensorRT-LLM engine over the fake library: the end id is among the ids of an answer, or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.text2token.engine_conformance import Bench, EngineConformance
from tests.unit.text2token.tensorrt_llm.bench import PortBench


@pytest.mark.parametrize("bench", [True, False], ids=["with_end_id", "without"], indirect=True)
class TestTensorRtLlmEngine(EngineConformance):
    @pytest.fixture
    def bench(self, request: pytest.FixtureRequest) -> Iterator[Bench]:
        port_bench = PortBench(end_id_in_output=request.param)
        yield port_bench.bench()
        port_bench.close()
