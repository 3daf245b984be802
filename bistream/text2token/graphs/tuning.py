"""Parameters of the recorded step that affect its speed and round-off only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphTuning:
    """num_warps, num_stages: of the attention template. Its default on Hopper is one stage, which prefetches no block: an error in
    the table of defaults of PyTorch 2.11 to 2.13."""

    num_warps: int = 2
    num_stages: int = 3
    most_splits: int = 16  # programs that share the blocks of one row
    filling_rows: int = 256  # rows that fill a GPU without splits
    combine_kernels: bool = False  # Inductor's combo kernels: small independent kernels in one launch

    def splits(self, rows: int) -> int:
        """Programs that share the blocks of one row, in a step of ``rows`` rows: 16 up to 16 rows, 4 for 64, 1 from 256 on."""
        return max(1, min(self.most_splits, self.filling_rows // rows))
