"""Attention of the flow encoder with relative positions. Kernels: ``position_rows``, ``attend_relative``."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.gpu.checks import DEVICE, INTERPRETED, Draw, assert_close, assert_untouched

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.token2mel.bench import (
    BATCHES,
    CASES,
    ConformerLayer,
    FlowBench,
    Session,
    encoder_layer,
    encoder_memory,
    kept,
    launch,
    same_bits,
    visible,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

cases = pytest.mark.parametrize(("batch", "dtype"), CASES, ids=str)
WIDTH, HEADS = 512, 8
HALF = WIDTH // 2


def rates(width: int) -> Tensor:
    return 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=DEVICE) / width)


def sinusoid(distance: Tensor) -> Tensor:
    """Sines in even and cosines in odd columns (Transformer-XL), float64 [..., WIDTH]."""
    angle = distance.double()[..., None] * rates(WIDTH)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


def heads(x: Tensor) -> Tensor:
    return torch.unflatten(x, -1, (HEADS, -1))


def position_weight(layer: ConformerLayer) -> Tensor:
    """float64 [HEADS, head, WIDTH]."""
    return torch.unflatten(layer.attention.to_positions.weight.double(), 0, (HEADS, -1))


def exact_turned(layer: ConformerLayer, query: Tensor, position: Tensor) -> Tensor:
    """Rotated queries of rows at ``position``: factors of the cosines (first half) and sines of the keys' angles. [rows, HEADS, WIDTH].

    The score of a key at j is query . P sinusoid(position - j), expanded by the addition theorem.
    """
    by_angle = torch.einsum("fhd,hdw->fhw", query, position_weight(layer))
    by_sin, by_cos = by_angle[..., 0::2], by_angle[..., 1::2]
    angle = position.double()[:, None, None] * rates(WIDTH)
    return torch.cat([by_sin * angle.sin() + by_cos * angle.cos(), by_cos * angle.sin() - by_sin * angle.cos()], dim=-1)


def keys_and_values(memory: Tensor, qkv: Tensor, session: Session) -> tuple[Tensor, Tensor]:
    """float64 [keys, HEADS, head] each, the stored ones first."""
    new = qkv[session.first : session.first + session.rows, WIDTH:]
    key, value = torch.cat([memory[list(session.stored)].flatten(0, 1), new]).double().chunk(2, dim=-1)
    return heads(key), heads(value)


def check(kind: str, batch: str, dtype: torch.dtype, ratio: int, left: int) -> None:
    draw, bench = Draw(kind, batch, dtype, ratio, left), FlowBench(kind, batch, dtype, left)
    live, buffers, layer, encoder = bench.live * ratio // 2, bench.buffers, encoder_layer(bench, ratio), bench.solver.encoder
    memory, index = encoder_memory(bench, ratio)
    bench.store(draw, memory, ratio)
    qkv, before = bench.rows(draw, buffers.qkv, live), memory.clone()
    tile = encoder.tiles.tokens if ratio == 1 else encoder.tiles.frames
    launch(encoder._attend, layer, index, bench.at_rate(ratio), memory, tile)

    sessions, chunk = bench.sessions(ratio), memory.shape[1]
    position = torch.cat([len(session.stored) * chunk + torch.arange(session.rows, device=DEVICE) for session in sessions])
    query = heads(qkv[:, :WIDTH].float())
    by_position = (query + layer.attention.position_bias.float()).to(dtype).double()
    by_content = (query + layer.attention.content_bias.float()).to(dtype).double()
    turned = buffers.turned[:live]
    assert_close(turned, exact_turned(layer, by_position, position), bench.bound)
    assert_untouched(buffers.turned[bench.written(16, live) :])
    assert same_bits(memory, kept(before, qkv[:, WIDTH:], sessions, chunk))

    table = encoder.weights.position_table.double()
    found, weight = buffers.encoder_attended[:live], position_weight(layer)
    outs: list[Tensor] = []
    by_definition: list[Tensor] = []
    for session in sessions:
        own = slice(session.first, session.first + session.rows)
        key, value = keys_and_values(before, qkv, session)
        seen, _ = visible(session, chunk, left)
        content = torch.einsum("fhd,khd->fhk", by_content[own], key)
        angles = torch.einsum("fhw,kw->fhk", turned[own].double(), table[: len(key)])
        distance = position[own][:, None] - torch.arange(len(key), device=DEVICE)
        turns = torch.einsum("fhd,hdw->fhw", by_position[own], weight)
        relative = torch.stack([row @ sinusoid(steps).T for row, steps in zip(turns, distance, strict=True)])
        for scores, target in ((content + angles, outs), (content + relative, by_definition)):
            weights = torch.softmax((scores / math.sqrt(WIDTH // HEADS)).masked_fill(~seen[:, None], -torch.inf), dim=-1)
            target.append(torch.einsum("fhk,khd->fhd", weights, value).flatten(1))
    assert_close(found, torch.cat(outs), bench.bound)
    assert_close(found, torch.cat(by_definition), 3 * bench.bound)  # the rotated queries and the table are rounded, too
    assert_untouched(buffers.encoder_attended[live:])


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("kind", ["few64", "many"])
@cases
def test_position_rows_and_attend_relative(kind: str, batch: str, dtype: torch.dtype, ratio: int) -> None:
    check(kind, batch, dtype, ratio, 0)


@pytest.mark.parametrize("left", [1, 3])
@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("batch", sorted(BATCHES))
def test_bounded_context(batch: str, ratio: int, left: int) -> None:
    check("few256", batch, torch.float16, ratio, left)
