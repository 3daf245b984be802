"""Query/key/value projection with RMSNorm and rotation; keys and values in the cache. Kernels: ``qkv_small``, ``qkv_many``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from bistream.text2token.cuda import kernels_qkv
from tests.gpu.checks import BOUNDS, Draw, assert_close, assert_untouched
from tests.gpu.text2token.bench import StepBench, cases, folded, fresh_bench, from_tiles, give_positions, unpack

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BOUND = BOUNDS[torch.bfloat16]


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """heads [rows, heads, 64]; cos, sin [rows, 32]. The first half of a head is rotated against the second."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def exact_heads(bench: StepBench, index: int, normed: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, float64 [rows, heads, 64]."""
    layer, config = bench.weights.layers[index], bench.config
    heads = normed @ folded(layer.qkv_weight, layer.input_norm).T + layer.qkv_bias.double()
    sizes = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
    query, key, value = torch.split(torch.unflatten(heads, 1, (-1, 64)), sizes, dim=1)
    angle = position.clamp(min=0)[:, None].double() / config.rope_theta ** (torch.arange(0, 64, 2, device=normed.device).double() / 64)
    return rotate(query, angle.cos(), angle.sin()), rotate(key, angle.cos(), angle.sin()), value


def check(name: str, rows: int, index: int, kernel: object) -> None:
    draw = Draw(name, rows, index)
    bench = fresh_bench(draw, name)
    slot, position = give_positions(bench, draw, rows)
    normed = bench.give_normed(draw, 2 * index, rows, packed=rows <= bench.tuning.qkv_small_rows)
    assert bench.qkv(index, rows) is kernel
    live = position >= 0
    query, key, value = (heads[live] for heads in exact_heads(bench, index, normed, position))
    found = bench.buffers.query[:rows].view(rows, -1, 64)
    assert_close(unpack(found)[live], query, BOUND)
    assert_untouched(found[~live], bench.buffers.query[rows:])
    block, place = bench.table[slot[live], position[live] // 64].long(), position[live] % 64
    keys, turned_values = from_tiles(bench.cache.blocks[index]).unbind(2)  # [blocks, kv_heads, 64, 64]
    values = turned_values.transpose(-1, -2)  # stored as [dimension, position]
    for found, exact in ((keys, key), (values, value)):
        assert_close(found[block, :, place], exact, BOUND)
        found[block, :, place] = torch.nan
        assert_untouched(found)
    assert_untouched(bench.cache.blocks[1 - index])


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("name", "rows"), cases(1, 64))
def test_qkv_small(name: str, rows: int, index: int) -> None:
    check(name, rows, index, kernels_qkv.qkv_small)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("name", "rows"), cases(65, 320))
def test_qkv_many(name: str, rows: int, index: int) -> None:
    check(name, rows, index, kernels_qkv.qkv_many)
