"""The step's kernels against its plain form in float32: every tile, any mix of rows, any size of network.

Without a GPU, in Triton's interpreter (``tests/gpu/token2mel/test_dit_kernels.py`` says how): ``-k interpreted``.
"""

from __future__ import annotations

import pytest
import torch

from bistream.text2token.graphs.runner import BLOCK_SIZE
from bistream.text2token.sequence import Segment
from tests.gpu.checks import INTERPRETED, Draw, poison
from tests.gpu.text2token.bench import CONFIGS, POSITIONS, SLOTS, fields_of, step_bench, turned_back

pytest.importorskip("triton")
if not INTERPRETED and (not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0)):
    pytest.skip("needs a GPU of compute capability 8.0, or Triton's interpreter", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BOUND = 2e-2  # relative error of scores after two layers of activations in 16 bit
# around the tiles of rows, and the row counts at which other kernels take over
ROWS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 320)
SOME_ROWS = (1, 8, 13, 16, 17, 33, 64, 65, 129, 257)
CASES = [("real", rows) for rows in ROWS] + [(name, rows) for name in ("smallest", "odd", "ragged", "largest") for rows in SOME_ROWS]
EDGES = (0, 1, 62, 63, 64, 127, 128, 255, 256, 257, 511, 512, 767, 768, 769, POSITIONS - 1)


def decoding_rows(name: str, draw: Draw, rows: int) -> list[Segment]:
    """One row of each of ``rows`` sequences, at positions around the edges of blocks, splits and parts, and at others."""
    places = draw.integers(0, POSITIONS, rows).tolist()
    tokens = draw.integers(0, CONFIGS[name].text_vocab_size, rows).tolist()
    slots = draw.permutation(SLOTS)[:rows].tolist()
    positions = [EDGES[row] if row < len(EDGES) else place for row, place in enumerate(places)]
    return [Segment(slot, position, (token,), True) for slot, position, token in zip(slots, positions, tokens, strict=True)]


def check(name: str, segments: list[Segment], padding: int, draw: Draw, dtype: torch.dtype = torch.bfloat16) -> None:
    bench = step_bench(name, dtype)
    bench.fill_cache(draw)
    before = bench.step.cache.blocks.clone()
    fields = fields_of(*segments, padding=padding)
    rows = len(fields) - padding
    exact, cache = bench.plain(fields)
    buffers = bench.kernels.buffers
    poison(buffers.x, buffers.query, buffers.attended, buffers.scores, buffers.parts, buffers.attention_parts)
    found = bench.kernels.scores(fields)[:rows]
    if not INTERPRETED:
        torch.cuda.synchronize()
    num_scores = bench.config.num_scores
    error = torch.linalg.vector_norm(found - exact[:rows]) / torch.linalg.vector_norm(exact[:rows, :num_scores])
    assert torch.isfinite(found).all() and float(error) < BOUND
    written = torch.zeros(bench.step.cache.blocks.shape[2:4], dtype=torch.bool, device=found.device)
    for segment in segments:
        for position in range(segment.position, segment.position + segment.num_rows):
            written[int(bench.step.table[segment.slot, position // BLOCK_SIZE]), position % BLOCK_SIZE] = True
    keys_and_values = turned_back(bench.step.cache.blocks)
    kept = ~written
    kept[-1] = False  # the block of padding rows
    assert torch.equal(keys_and_values[:, :, kept], turned_back(before)[:, :, kept]), "only the rows' own positions are written"
    new, wanted = keys_and_values[:, :, written].float(), cache[:, :, written]
    assert float(torch.linalg.vector_norm(new - wanted) / torch.linalg.vector_norm(wanted)) < BOUND


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_rows_of_many_sequences(name: str, rows: int) -> None:
    draw = Draw(name, rows)
    check(name, decoding_rows(name, draw, rows), padding=0, draw=draw)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [3, 40, 150])
def test_a_part_of_a_prompt_among_others(name: str, rows: int) -> None:
    """Rows of one sequence see one another; padding rows change nothing."""
    draw = Draw("prompt", name, rows)
    others = decoding_rows(name, draw, 6)
    free = next(slot for slot in range(SLOTS) if slot not in {segment.slot for segment in others})
    prompt = Segment(free, 200, tuple(draw.integers(0, CONFIGS[name].text_vocab_size, rows).tolist()), True)
    check(name, [*others[:3], prompt, *others[3:]], padding=5, draw=draw)


@pytest.mark.parametrize("rows", [1, 16, 40, 130])
def test_float16(rows: int) -> None:
    """The residual stream's copy is smaller there."""
    draw = Draw("float16", rows)
    check("real", decoding_rows("real", draw, rows), 0, draw, torch.float16)


@pytest.mark.skipif(not INTERPRETED, reason="the others run on a GPU")
@pytest.mark.parametrize(("name", "rows"), [("smallest", 3), ("smallest", 40), ("odd", 20), ("ragged", 65)])
def test_interpreted(name: str, rows: int) -> None:
    """Its products of bfloat16 are wrong."""
    draw = Draw("interpreted", name, rows)
    check(name, decoding_rows(name, draw, rows), 1, draw, torch.float16)
