"""Hidden states and scores of the language model against the golden forward pass, dense and through the paged cache."""

from __future__ import annotations

import pytest
import torch

from bistream.text2token.attention import plan_attention
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import build_weights
from tests.parity import golden

TOLERANCE = 1e-4  # absolute, float32 on CPU (tests/golden/README.md)
BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def model() -> Qwen2Model:
    config = golden.checkpoint_config().language_model
    return Qwen2Model(config, build_weights(golden.tensors("llm_weights"), config, torch.device("cpu"), torch.float32))


@pytest.fixture(scope="module")
def ids(model: Qwen2Model) -> torch.Tensor:
    case = golden.tensors("llm_forward")
    speech = case["speech"][0].long() + model.space.speech_offset
    return torch.cat([torch.tensor([model.space.sos]), case["text"][0].long(), torch.tensor([model.space.task]), speech])


def assert_close(model: Qwen2Model, hidden: torch.Tensor) -> None:
    case = golden.tensors("llm_forward")
    torch.testing.assert_close(hidden, case["hidden"][0], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(model.logits(hidden), case["logits"][0], rtol=0, atol=TOLERANCE)


def test_embedding_rows_follow_the_token_space(model: Qwen2Model, ids: torch.Tensor) -> None:
    assert torch.equal(model.embed(ids), golden.tensors("llm_forward")["inputs_embeds"][0])


def test_dense_forward(model: Qwen2Model, ids: torch.Tensor) -> None:
    assert_close(model, model.forward_dense(ids))


@pytest.mark.parametrize("chunks", [[None], [1] * 99, [1, 2, 3, 5, 7, 11, 13], [9, 1, 1, 25], [17, 4, 15]])
def test_paged_rows_in_odd_chunks(model: Qwen2Model, ids: torch.Tensor, chunks: list[int | None]) -> None:
    """Two copies of the sequence in scattered blocks, one a chunk behind the other, in memory otherwise full of NaN."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    cache = PagedCache(model.config, 3 * num_blocks, BLOCK_SIZE, torch.device("cpu"), torch.float32)
    cache.blocks.fill_(torch.nan)
    order = torch.randperm(3 * num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    tables = [order[:num_blocks], order[num_blocks : 2 * num_blocks]]
    frontier = [0, 0]
    hidden: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for count in [*chunks, None, None]:
        segments = []
        for sequence in (0, 1):
            end = len(ids) if count is None else min(len(ids), frontier[sequence] + count)
            end = min(end, frontier[0]) if sequence else end  # the second one follows
            if end > frontier[sequence]:
                segments.append((sequence, frontier[sequence], end))
        if not segments:
            continue
        positions = torch.cat([torch.arange(start, end) for _, start, end in segments])
        owners = torch.cat([torch.full((end - start,), sequence) for sequence, start, end in segments])
        index = torch.tensor(tables)[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        plan = plan_attention(
            [(start, end - start) for _, start, end in segments],
            [tables[sequence] for sequence, _, _ in segments],
            BLOCK_SIZE,
            torch.device("cpu"),
        )
        out = model.forward_rows(ids[positions], positions, cache, index, plan)
        for sequence, _, end in segments:
            hidden[sequence].append(out[owners == sequence])
            frontier[sequence] = end
    assert frontier == [len(ids), len(ids)]
    assert_close(model, torch.cat(hidden[0]))
    assert_close(model, torch.cat(hidden[1]))
