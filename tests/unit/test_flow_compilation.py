"""The kernels of CosyVoice2's flow compile for every generation of GPU, at full size, within the shared memory that it has.

On a machine without a GPU: ``kernel_compiler`` says how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bistream.token2mel import weights
from bistream.token2mel.pages import FlowPages
from scripts.make_checkpoint import FULL

pytest.importorskip("triton", reason="the compiler alone is enough: see kernel_compiler")

import triton

from bistream.token2mel.cuda.launches_many import GLUON_TRITON
from bistream.token2mel.cuda.runner import CudaFlowRunner
from bistream.token2mel.cuda.tuning import BUCKETS
from tests.unit.kernel_compiler import CPU, SHARED_KIB, names_that_compile_and_fit, simulate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_they_compile_and_fit(capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulate(capability, monkeypatch, tmp_path)
    sizes: Any = FULL.checkpoint.flow
    state = {key: torch.zeros(shape) for key, shape in weights.expected_shapes(sizes).items()}
    network = weights.build_network(state, sizes, CPU, torch.float16)
    buckets = (*BUCKETS[:4], BUCKETS[-1])  # one of each tuning
    runner = CudaFlowRunner(network, FlowPages(sizes, 20, torch.float16, CPU), 0, buckets)
    in_gluon = capability == 90 and triton.__version__.startswith(f"{GLUON_TRITON}.")
    assert names_that_compile_and_fit(runner._launch_all, capability) >= {
        *("query_few", "attend_few", "join_few", "feed_forward_few", "window_few"),
        *("attend_pages_large" if in_gluon else "attend_pages", "add_rows", "fold_query", "linear", "norm_rows"),
        *("window_linear", "finish_step"),
    }
