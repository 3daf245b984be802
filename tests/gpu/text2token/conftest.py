"""Stand-ins for the inline assembly of the step's kernels, which Triton's interpreter lacks."""

from __future__ import annotations

import pytest

from tests.gpu.checks import INTERPRETED


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not INTERPRETED:
        return
    from bistream.text2token.graphs.cuda import kernels_residual, kernels_rows, pieces_linear  # noqa: PLC0415  (imports triton)
    from tests.gpu import plain_instructions  # noqa: PLC0415

    for module in (pieces_linear, kernels_residual):
        monkeypatch.setattr(module, "add_in_order", plain_instructions.add)
    for module in (pieces_linear, kernels_rows):
        monkeypatch.setattr(module, "squares", plain_instructions.squares)
