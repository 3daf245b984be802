# mypy: ignore-errors
"""The rotation of the DiT's positions, for several kernels; see ``dit.estimator.rotate``."""

import triton
import triton.language as tl


@triton.jit
def turned(x, position, begin, table_ptr, table_size, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x: float32 [ROWS, COLUMNS], channels from ``begin`` on, each pair of neighbours turned by its angle; from WIDTH on none is.

    position: of each row. table: ``attention.turns``, whose sines begin after ``table_size`` numbers.
    """
    even, odd = tl.split(tl.reshape(x, (ROWS, COLUMNS // 2, 2)))
    pair = begin // 2 + tl.arange(0, COLUMNS // 2)
    angle = table_ptr + position[:, None] * (WIDTH // 2) + pair[None, :]
    is_turned = (pair < WIDTH // 2)[None, :]
    cosine = tl.load(angle, mask=is_turned, other=1.0)
    sine = tl.load(angle + table_size, mask=is_turned, other=0.0)
    return tl.reshape(tl.join(even * cosine - odd * sine, odd * cosine + even * sine), (ROWS, COLUMNS))
