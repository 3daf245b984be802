"""The operations of the DiT's recorded graphs in plain PyTorch: what the kernels compute, as their reference, and in their place on a CPU.

Tensors are [tiles, rows, channels] of both guidance halves, the second half's tiles and pages after the first's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import modulated
from bistream.token2mel.dit.graphs.attention import Slots
from bistream.token2mel.dit.graphs.operations import DitOperations, PackedConv
from bistream.token2mel.state_rows import StateRows


def convolve(x: Tensor, tail: StateRows, previous: Tensor, last: Tensor, page: Tensor, conv: PackedConv) -> Tensor:
    """Grouped causal convolution, then Mish; stores the last inputs of each tile.

    tail: [pages, history, groups, channels of a group], stored inputs of this convolution. previous: the tile of the chunk before, -1 where
    ``last`` is its page. page: where the tile's own last frames go.
    """
    (tiles, rows, channels), (groups, kernel, _, _) = x.shape, conv.weight.shape
    ends = x[:, rows - (kernel - 1) :]
    head = torch.where((previous >= 0)[:, None, None], ends[previous.clamp(min=0)], tail.read(0, last).flatten(2).to(x.dtype))
    tail.write(0, page, ends.reshape(tiles, kernel - 1, groups, -1))
    taps = torch.cat([head, x], dim=1).unfold(1, kernel, 1).view(tiles, rows, groups, channels // groups, kernel)
    taps = taps.permute(2, 0, 1, 4, 3).reshape(groups, tiles * rows, -1)
    out = torch.baddbmm(conv.bias.view(groups, 1, -1), taps, conv.weight.flatten(1, 2))  # [groups, tiles * rows, channels of a group]
    return F.mish(out.transpose(0, 1).reshape(x.shape))


def advance(
    x: Tensor, delta: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor, pages: StateRows | None = None, page: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(x + gate * delta, float32; its modulated norm in the dtype of delta), the norm also stored to ``pages`` [pages, rows, width]."""
    x = x + gate * delta.float()
    normed = modulated(x, scale, shift).to(delta.dtype)
    if pages is not None and page is not None:
        pages.write(0, page, normed)
    return x, normed


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The first half of a feed-forward, GELU in its tanh form."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def project_context(pages: StateRows, slots: Slots, weight: StateRows, bias: Tensor, table: Tensor) -> Tensor:
    """Keys, turned, and values of stored pages, [blocks, 2 * stored, frames, 2 * width]; what no tile sees may be anything.

    pages: block inputs, [blocks, 2 * pages, frames, dim]. weight: [blocks, 2 * width, dim]; bias: [blocks, 2 * width]. table: of ``turns``.
    """
    seen = pages.read(1, slots.page).to(bias.dtype)
    projected = torch.baddbmm(bias[:, None], seen.flatten(1, 2), weight.numbers().to(bias.dtype).transpose(1, 2)).view(*seen.shape[:3], -1)
    return torch.stack([_turned(block, table, slots.start[: len(slots.page)]) for block in projected])


def attend_projected(own: Tensor, context: Tensor, table: Tensor, slots: Slots, heads: int, scale: float) -> Tensor:
    """[tiles, frames, heads * width]; zeros for a tile that sees nothing. table: of ``turns``.

    own: queries, keys and values of the tiles, [tiles, frames, 3 * heads * width]. context: of ``project_context``, one block.
    """
    query, own_keys, own_values = own.chunk(3, dim=2)
    context_keys, context_values = context.chunk(2, dim=2)
    query, own_keys = (_turned(x, table, slots.start[len(context) :]) for x in (query, own_keys))
    key, value = torch.cat([context_keys, own_keys]), torch.cat([context_values, own_values])
    return attend_gathered(query, key, value, slots.visible, slots.lists, slots.live, heads, scale)


def attend_gathered(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, lists: Tensor, page_live: Tensor, heads: int, scale: float
) -> Tensor:
    """query: [tiles, rows, heads * width]; the result has its shape. Zeros for a tile that sees nothing.

    keys, values: [pages, rows, width], shared by all heads, or [pages, rows, heads * width].
    visible: int32 [tiles], pages of each tile's list; lists: int32 [tiles, longest]. page_live: int32 [pages], rows of each page that are
    keys.
    """
    tiles, rows, _ = query.shape
    longest = int(visible.max())
    if longest == 0:
        return torch.zeros_like(query)
    index = lists[:, :longest].long()
    is_listed = torch.arange(longest, device=query.device) < visible[:, None]
    is_live = torch.arange(rows, device=query.device) < page_live[index][:, :, None]
    is_key = (is_listed[:, :, None] & is_live).flatten(1)
    is_row = is_listed.repeat_interleave(rows, dim=1)[:, :, None]
    split = query.view(tiles, rows, heads, -1).transpose(1, 2)

    def of_heads(pages: Tensor) -> Tensor:
        """[tiles, heads, longest * rows, width]"""
        gathered = pages[index].flatten(1, 2).masked_fill(~is_row, 0.0)
        return gathered.view(*gathered.shape[:2], -1, split.shape[3]).transpose(1, 2).expand(-1, heads, -1, -1)

    mask = is_key[:, None, None, :].expand(-1, 1, rows, -1)
    out = F.scaled_dot_product_attention(split, of_heads(keys), of_heads(values), attn_mask=mask, scale=scale)
    out = torch.where(is_key.any(dim=1)[:, None, None, None], out, 0.0)
    return out.transpose(1, 2).flatten(2)


def _turned(x: Tensor, table: Tensor, start: Tensor) -> Tensor:
    positions = start[:, None].long() + torch.arange(x.shape[1], device=x.device)
    cosine, sine = table[:, positions]
    width = 2 * cosine.shape[2]
    even, odd = x[:, :, 0:width:2].float(), x[:, :, 1:width:2].float()
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[:, :, width:]], dim=-1)


PLAIN = DitOperations(convolve, advance, linear_gelu, project_context, attend_projected)
