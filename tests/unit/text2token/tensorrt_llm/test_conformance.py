"""``EngineConformance`` on the TensorRT-LLM engine over the port: both cache managers, end ids among the ids of an answer or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.text2token.engine_conformance import Bench, EngineConformance
from tests.unit.text2token.tensorrt_llm.bench import PortBench


@pytest.mark.parametrize("bench", [("v1", True), ("v2", False)], ids=["v1", "v2"], indirect=True)
class TestTensorRtLlmEngine(EngineConformance):
    @pytest.fixture
    def bench(self, request: pytest.FixtureRequest) -> Iterator[Bench]:
        manager, end_id_in_output = request.param
        port_bench = PortBench(manager=manager, end_id_in_output=end_id_in_output)
        yield port_bench.bench()
        port_bench.close()
