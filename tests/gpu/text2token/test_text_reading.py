"""One head read in the step's kernels, against the products of its own query and keys, and against the step without it.

Without a GPU, in Triton's interpreter (``tests/gpu/token2mel/test_dit_kernels.py`` says how): ``-k interpreted``.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bistream.text2token.graphs.runner import BLOCK_SIZE
from bistream.text2token.graphs.text_reading import number_of
from bistream.text2token.sequence import Segment
from tests.gpu.checks import INTERPRETED, Draw, poison
from tests.gpu.text2token.bench import CONFIGS, POSITIONS, SLOTS, StepBench, fields_of, step_bench
from tests.gpu.text2token.test_step import decoding_rows

pytest.importorskip("triton")
if not INTERPRETED and (not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0)):
    pytest.skip("needs a GPU of compute capability 8.0, or Triton's interpreter", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

ROUNDING = 1e-5  # of a float32 sum of up to 128 products
LAYER = 1  # the last one, whose queries are left
HEADS = {"real": 5, "smallest": 1, "odd": 4, "ragged": 14, "largest": 9}


def places_of(bench: StepBench, segment: Segment) -> Tensor:
    """Of the positions of a sequence up to the segment's last one, in the cache."""
    positions = torch.arange(segment.position + segment.num_rows, device=bench.step.table.device)
    return bench.step.table[segment.slot].long()[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE


def check(name: str, segments: list[Segment], padding: int, draw: Draw, dtype: torch.dtype = torch.bfloat16) -> None:
    head = HEADS[name]
    bench, alone = step_bench(name, dtype, (LAYER, head)), step_bench(name, dtype)
    bench.fill_cache(draw)
    alone.step.cache.blocks.copy_(bench.step.cache.blocks)
    alone.step.table.copy_(bench.step.table)
    reading = bench.step.reading
    assert reading is not None
    reading.is_text.copy_(draw.uniform(0.0, 1.0, len(reading.is_text)) < 0.15)
    for segment in segments[::7]:
        reading.is_text[places_of(bench, segment)] = 0  # no text but its own
    before = reading.is_text.clone()
    fields = fields_of(*segments, padding=padding)
    poison(bench.kernels.buffers.query, bench.kernels.buffers.attended, reading.found)
    scores = bench.kernels.scores(fields)
    assert torch.equal(scores[: len(fields) - padding], alone.kernels.scores(fields)[: len(fields) - padding]), "reading changes no score"
    row, written = 0, torch.zeros_like(before, dtype=torch.bool)
    share = bench.config.num_attention_heads // bench.config.num_key_value_heads
    keys = bench.step.cache.layer(LAYER)[0].flatten(0, 1)[:, head // share].double()
    queries = bench.kernels.buffers.query.view(-1, bench.config.num_attention_heads, bench.config.head_size)[:, head].double()
    for segment in segments:
        places = places_of(bench, segment)
        own = places[segment.position :]
        written[own] = True
        ids = torch.tensor(segment.ids, device=own.device)
        assert torch.equal(reading.is_text[own] > 0, (ids >= 0) & (ids < bench.config.text_vocab_size))
        for place in range(segment.num_rows):
            seen = places[: segment.position + place + 1]
            texts = (reading.is_text[seen] > 0).nonzero()[:, 0].tolist()
            number = number_of(int(reading.found[row]), texts)
            products = keys[seen[texts]] @ queries[row]
            assert number >= 0 if texts else number == -1
            if texts:
                assert float(products.max() - products[number]) <= ROUNDING * float(
                    queries[row].norm() * keys[seen[texts]].norm(dim=1).max()
                )
            row += 1
    assert torch.equal(reading.is_text[~written], before[~written]), "only the rows' own positions are noted"


def mixed(name: str, draw: Draw, rows: int) -> list[Segment]:
    """Decoding rows of text and of speech, and a part of a prompt among them."""
    segments = decoding_rows(name, draw, rows)
    speech = CONFIGS[name].text_vocab_size + 3
    segments = [Segment(one.slot, one.position, (speech,), True) if number % 2 else one for number, one in enumerate(segments)]
    free = next(slot for slot in range(SLOTS) if slot not in {segment.slot for segment in segments})
    prompt = tuple(speech if number % 3 else number for number in range(9))
    return [*segments[:2], Segment(free, min(124, POSITIONS - 9), prompt, True), *segments[2:]]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter's products of bfloat16 are wrong")
@pytest.mark.parametrize("rows", [1, 8, 20, 33, 64, 129, 300])
@pytest.mark.parametrize("name", HEADS)
def test_the_most_weighty_text(name: str, rows: int) -> None:
    draw = Draw("reading", name, rows)
    check(name, mixed(name, draw, rows), 3, draw)


@pytest.mark.skipif(not INTERPRETED, reason="the others run on a GPU")
@pytest.mark.parametrize(("name", "rows"), [("smallest", 3), ("smallest", 40), ("odd", 20), ("ragged", 17)])
def test_interpreted(name: str, rows: int) -> None:
    draw = Draw("reading", name, rows)
    check(name, mixed(name, draw, rows), 1, draw, torch.float16)
