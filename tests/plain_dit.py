"""The operations of the DiT's recorded graphs in plain PyTorch: what the kernels compute, as their reference, and in their place on a CPU.

Tensors are [rows, channels] of both guidance halves. Here tiles are padded to [tiles, frames, channels] and packed again; rows of no tile
are NaN then, as nobody may read them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.dit.estimator import modulated
from bistream.token2mel.dit.graphs.operations import DitOperations, PackedConv
from bistream.token2mel.dit.graphs.tiles import StoredSlots, Tiles
from bistream.token2mel.state_rows import StateRows


def convolve(x: Tensor, tail: StateRows, tiles: Tiles, conv: PackedConv) -> Tensor:
    """Grouped causal convolution, then Mish; stores the last inputs of each complete tile.

    tail: [pages, history, groups, channels of a group], stored inputs of this convolution.
    """
    groups, kernel, width, _ = conv.weight.shape
    history, own = kernel - 1, padded(x, tiles)
    before = x[(tiles.begin[:, None] + torch.arange(-history, 0, device=x.device)).clamp(min=0)]
    head = torch.where((tiles.follows == 1)[:, None, None], before, tail.read(0, tiles.last).flatten(2).to(x.dtype))
    complete = tiles.live == tiles.frames
    tail.write(0, tiles.page[complete], own[complete, -history:].reshape(-1, history, groups, width))
    taps = torch.cat([head, own], dim=1).unfold(1, kernel, 1).view(*own.shape[:2], groups, width, kernel)
    taps = taps.permute(2, 0, 1, 4, 3).reshape(groups, len(own) * tiles.frames, -1)
    out = torch.baddbmm(conv.bias.view(groups, 1, -1), taps, conv.weight.flatten(1, 2))  # [groups, tiles * frames, channels of a group]
    return packed(F.mish(out.transpose(0, 1).reshape(own.shape)), tiles)


def advance(
    x: Tensor, delta: Tensor, *, gate: Tensor, shift: Tensor, scale: Tensor, pages: StateRows | None = None, line: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(x + gate * delta, float32; its modulated norm in the dtype of delta), the norm also stored to ``pages`` [pages, frames, width], each
    row to its ``line`` of them."""
    x = x + gate * delta.float()
    normed = modulated(x, scale, shift).to(delta.dtype)
    if pages is not None and line is not None:
        pages.flatten(0, 1).write(0, line, normed)
    return x, normed


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The first half of a feed-forward, GELU in its tanh form."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def project_context(pages: StateRows, stored: StoredSlots, weight: StateRows, bias: Tensor, table: Tensor) -> Tensor:
    """Keys, turned, and values of stored pages, [blocks, slots, frames, 2 * width]; what no tile sees may be anything.

    pages: block inputs, [blocks, 2 * pages, frames, dim]. weight: [blocks, 2 * width, dim]; bias: [blocks, 2 * width]. table: of ``turns``.
    """
    seen = pages.read(1, stored.page).to(bias.dtype)
    projected = torch.baddbmm(bias[:, None], seen.flatten(1, 2), weight.numbers().to(bias.dtype).transpose(1, 2)).view(*seen.shape[:3], -1)
    return torch.stack([_turned(block, table, stored.start) for block in projected])


def attend(own: Tensor, context: Tensor, table: Tensor, tiles: Tiles, heads: int, scale: float) -> Tensor:
    """[rows, heads * width]; zeros for a tile that sees nothing. table: of ``turns``.

    own: queries, keys and values, [rows, 3 * heads * width]. context: of ``project_context``, one block.
    """
    longest = int(tiles.visible.max())
    if longest == 0:
        return torch.zeros_like(own[:, : own.shape[1] // 3])
    query, own_keys, own_values = padded(own, tiles).chunk(3, dim=2)
    context_keys, context_values = context.chunk(2, dim=2)
    query, own_keys = (_turned(x, table, tiles.start) for x in (query, own_keys))
    live = torch.cat([tiles.live.new_full((len(context),), tiles.frames), tiles.live])
    index = tiles.lists[:, :longest].long()
    is_listed = torch.arange(longest, device=own.device) < tiles.visible[:, None]
    is_key = is_listed[:, :, None] & (torch.arange(tiles.frames, device=own.device) < live[index][:, :, None])

    def of_heads(slots: Tensor) -> Tensor:
        """[tiles, heads, longest * frames, width]"""
        gathered = torch.where(is_key[..., None], slots[index], 0.0).flatten(1, 2)
        return gathered.view(*gathered.shape[:2], heads, -1).transpose(1, 2)

    keys, values = of_heads(torch.cat([context_keys, own_keys])), of_heads(torch.cat([context_values, own_values]))
    mask = is_key.flatten(1)[:, None, None, :]
    out = F.scaled_dot_product_attention(query.view(*query.shape[:2], heads, -1).transpose(1, 2), keys, values, attn_mask=mask, scale=scale)
    out = torch.where(mask.any(dim=3, keepdim=True), out, 0.0)
    return packed(out.transpose(1, 2).flatten(2), tiles)


def padded(x: Tensor, tiles: Tiles) -> Tensor:
    """[tiles, frames, channels]: the rows of each tile, then zeros."""
    place, is_live = _places(tiles)
    return torch.where(is_live[:, :, None], x[place], 0.0)


def packed(x: Tensor, tiles: Tiles) -> Tensor:
    """[rows, channels] of [tiles, frames, channels]."""
    place, is_live = _places(tiles)
    out = x.new_full((len(tiles.line), x.shape[2]), float("nan"))
    out[place[is_live]] = x[is_live]
    return out


def _places(tiles: Tiles) -> tuple[Tensor, Tensor]:
    frame = torch.arange(tiles.frames, device=tiles.begin.device)
    is_live = frame < tiles.live[:, None]
    return torch.where(is_live, tiles.begin[:, None] + frame, 0), is_live


def _turned(x: Tensor, table: Tensor, start: Tensor) -> Tensor:
    positions = start[:, None].long() + torch.arange(x.shape[1], device=x.device)
    cosine, sine = table[:, positions]
    width = 2 * cosine.shape[2]
    even, odd = x[:, :, 0:width:2].float(), x[:, :, 1:width:2].float()
    turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[:, :, width:]], dim=-1)


PLAIN = DitOperations(convolve, advance, linear_gelu, project_context, attend)
