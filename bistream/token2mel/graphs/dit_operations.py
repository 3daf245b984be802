"""The DiT's operations between matrix products, as ``operations`` are the U-Net's: eager, or compiled to one or two kernels each.

Tensors are [tiles, rows, channels] of both guidance halves, the second half's tiles, pages and slots after the first's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import modulated
from bistream.token2mel.graphs.attention import attend_flex, attend_gathered, kernel_options
from bistream.token2mel.graphs.operations import compile_for_all_sizes, compile_per_size


def extend_left(x: Tensor, tail: Tensor, previous: Tensor, last: Tensor, page: Tensor, *, chunk: int, history: int) -> Tensor:
    """The input of a causal convolution, [tiles, channels, history + rows]; stores the last ``history`` frames of each chunk.

    tail: [pages, history, channels], stored frames. previous: the tile of the chunk before, -1 where ``last`` is its page. page: where the
    tile's own last frames go. chunk: frames of a whole tile.
    """
    ends = x[:, chunk - history : chunk]
    head = torch.where((previous >= 0)[:, None, None], ends[previous.clamp(min=0)], tail[last])
    tail[page] = ends
    return torch.cat([head, x], dim=1).transpose(1, 2)


def advance(x: Tensor, delta: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(x + gate * delta, float32; its modulated norm in the dtype of delta)."""
    x = x + gate * delta.float()
    return x, modulated(x, scale, shift).to(delta.dtype)


def advance_and_keep(
    x: Tensor, delta: Tensor, pages: Tensor, page: Tensor, context: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``advance``, the norm stored to ``pages`` [pages, rows, width]; then all that keys are made of, the ``context`` pages first."""
    x, normed = advance(x, delta, gate=gate, shift=shift, scale=scale)
    pages[page] = normed
    return x, normed, torch.cat([pages[context], normed])


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The first channels of x turned by angles [tiles, rows, n], in pairs of neighbours; see ``dit.estimator.rotate``."""
    width = 2 * cosine.shape[2]
    even, odd = x[:, :, 0:width:2].float(), x[:, :, 1:width:2].float()
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[:, :, width:]], dim=-1)


def rotate_query(query: Tensor, cosine: Tensor, sine: Tensor, *, rows: int) -> Tensor:
    """[tiles, rows of a page, width], zeros behind the tile's own rows."""
    return whole_pages(rotated(query, cosine, sine), rows)


def whole_pages(x: Tensor, rows: int) -> Tensor:
    """[tiles, frames, width] -> [tiles, rows, width], zeros behind the frames."""
    return F.pad(x, (0, 0, 0, rows - x.shape[1]))


def place_keys(projected: Tensor, cosine: Tensor, sine: Tensor, slot: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write rotated keys, and values, to their slots.

    projected: [slots of the batch, frames, 2 * width]. keys, values: [slots, rows, width], zeros behind the frames; whole pages are
    written, because the compiler would copy the workspace, all of it and back, to write to a part of its rows.
    """
    key, value = projected.chunk(2, dim=2)
    keys[slot] = whole_pages(rotated(key, cosine, sine), keys.shape[1])
    values[slot] = whole_pages(value, values.shape[1])


@dataclass(frozen=True)
class DitOperations:
    """The functions above and ``attention.attend_flex`` all eager (CPU) or all compiled (GPU)."""

    extend_left: Callable[..., Tensor]
    advance: Callable[..., tuple[Tensor, Tensor]]
    advance_and_keep: Callable[..., tuple[Tensor, Tensor, Tensor]]
    rotate_query: Callable[..., Tensor]
    place_keys: Callable[..., None]
    attend: Callable[..., Tensor]


def plain_operations() -> DitOperations:
    return DitOperations(extend_left, advance, advance_and_keep, rotate_query, place_keys, attend_gathered)


def compiled_operations(device: torch.device, dtype: torch.dtype, head_size: int) -> DitOperations:
    shared_memory = int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin"))  # noqa: B009
    options = kernel_options(head_size, dtype.itemsize, shared_memory)
    return DitOperations(
        extend_left=compile_for_all_sizes(extend_left),
        advance=compile_for_all_sizes(advance),
        advance_and_keep=compile_for_all_sizes(advance_and_keep),
        rotate_query=compile_for_all_sizes(rotate_query),
        place_keys=compile_for_all_sizes(place_keys),
        attend=functools.partial(compile_per_size(attend_flex), options=options),
    )
