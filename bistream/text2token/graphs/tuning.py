"""Numbers of the recorded step that change its speed and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphTuning:
    """num_warps, num_stages: of the attention template. Its own choice on Hopper is one stage, which fetches no block ahead: a slip in
    the table of defaults of PyTorch 2.11 to 2.13."""

    num_warps: int = 2
    num_stages: int = 3
    most_splits: int = 16  # programs that share the blocks of one row
    filling_rows: int = 256  # rows that occupy a GPU without splits
    combine_kernels: bool = False  # Inductor's joining of small independent kernels

    def splits(self, rows: int) -> int:
        """Programs that share the blocks of one row, in a step of ``rows`` rows: 16 up to 16 rows, 4 for 64, 1 from 256 on."""
        return max(1, min(self.most_splits, self.filling_rows // rows))
