"""Products of rows with a matrix of weights, in any number of rows with the same bits.

A CPU's float32 matrices are served in oneDNN's order, by two operations that PyTorch keeps for its compiler. ``functional.linear`` calls
MKL, which takes three times as long for a row of a large model, and gives a row other bits alone than among four or more.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

_ROWS = 4  # of the product that oneDNN chooses its order for; that for a single row gives it other bits than that for more


def packed(weight: Tensor) -> Tensor:
    """weight [out, in] in the order in which ``product`` is fastest on its device. For inference; packed once, it stays as it is."""
    if weight.is_mkldnn or weight.device.type != "cpu" or weight.dtype != torch.float32 or not _is_invariant(*weight.shape):
        return weight
    return _in_order(weight)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [n, in], weight [out, in], packed or not -> [n, out]."""
    if not weight.is_mkldnn:
        return functional.linear(rows, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return found


def _in_order(weight: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return found


@cache
def _is_invariant(outputs: int, width: int) -> bool:
    """Whether this processor gives a row the same bits in any number of rows of such a product; takes milliseconds."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    generator = torch.Generator().manual_seed(0)
    weight, rows = _in_order(torch.randn(outputs, width, generator=generator)), torch.randn(64, width, generator=generator)
    together = product(rows, weight)
    return all(torch.equal(product(rows[:count], weight), together[:count]) for count in (1, 2, 3, 4, 5, 8, 17, 32))
