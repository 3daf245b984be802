"""Hidden states and scores of the language model against the golden forward pass, dense and through the paged cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bistream.text2token.attention import plan_attention
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import build_weights
from tests.parity import golden

TOLERANCE = 1e-4  # absolute, float32 on CPU (tests/golden/README.md)
BLOCK_SIZE = 4


@pytest.fixture(scope="module", params=golden.SETS)
def golden_set(request: pytest.FixtureRequest) -> golden.GoldenSet:
    return golden.SETS[request.param]


@pytest.fixture(scope="module")
def case(golden_set: golden.GoldenSet) -> dict[str, torch.Tensor]:
    return golden_set.tensors("llm_forward")


@pytest.fixture(scope="module")
def model(golden_set: golden.GoldenSet) -> Qwen2Model:
    """With all rows of the checkpoint's head."""
    config = golden_set.language_model()
    return Qwen2Model(config, build_weights(golden_set.tensors("llm_weights"), config, torch.device("cpu"), torch.float32))


@pytest.fixture(scope="module")
def ids(model: Qwen2Model, case: dict[str, torch.Tensor]) -> torch.Tensor:
    speech = case["speech"][0].long() + model.space.speech_offset
    return torch.cat([torch.tensor([model.space.sos]), case["text"][0].long(), torch.tensor([model.space.task]), speech])


def assert_close(model: Qwen2Model, case: dict[str, torch.Tensor], hidden: torch.Tensor) -> None:
    torch.testing.assert_close(hidden, case["hidden"][0], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(model.logits(hidden), case["logits"][0], rtol=0, atol=TOLERANCE)


def test_embedding_rows_follow_the_token_space(model: Qwen2Model, case: dict[str, torch.Tensor], ids: torch.Tensor) -> None:
    assert torch.equal(model.embed(ids), case["inputs_embeds"][0])


def test_dense_forward(model: Qwen2Model, case: dict[str, torch.Tensor], ids: torch.Tensor) -> None:
    assert_close(model, case, model.forward_dense(ids))


def test_the_engine_has_the_scores_of_every_id_with_a_meaning(golden_set: golden.GoldenSet, case: dict[str, torch.Tensor]) -> None:
    """Of CosyVoice3's 200 rows behind the speech tokens the engine is given four; their scores, and the ids, are the same."""
    every = golden_set.language_model()
    config = replace(every, rows=golden_set.family.rows)
    model = Qwen2Model(config, build_weights(golden_set.tensors("llm_weights"), config, torch.device("cpu"), torch.float32))
    space = model.space
    speech = case["speech"][0].long() + space.speech_offset
    ids = torch.cat([torch.tensor([space.sos]), case["text"][0].long(), torch.tensor([space.task]), speech])
    logits = model.logits(model.forward_dense(ids))
    assert logits.shape[1] == space.num_scores == config.speech_token_size + len(space.specials)
    torch.testing.assert_close(logits, case["logits"][0][:, : space.num_scores], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("chunks", [[None], [1] * 99, [1, 2, 3, 5, 7, 11, 13], [9, 1, 1, 25], [17, 4, 15]])
def test_paged_rows_in_odd_chunks(model: Qwen2Model, case: dict[str, torch.Tensor], ids: torch.Tensor, chunks: list[int | None]) -> None:
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
    assert_close(model, case, torch.cat(hidden[0]))
    assert_close(model, case, torch.cat(hidden[1]))
