"""How a head that follows the text is told from others."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.attention import attend_causal
from bistream.text2token.head_scores import HeadScore, best_head, scores_of, text_weights
from bistream.text2token.qwen2 import Qwen2Model
from tests.unit.text2token import tiny


def weights(looked: list[int], texts: int, peak: float) -> torch.Tensor:
    """[speech tokens, text ids]: most of the weight on one text id."""
    found = torch.full((len(looked), texts), (1.0 - peak) / max(1, texts - 1))
    found[torch.arange(len(looked)), torch.tensor(looked)] = peak
    return found


@given(pace=st.lists(st.integers(1, 9), min_size=2, max_size=30), peak=st.floats(0.6, 1.0), skipped=st.integers(0, 20))
def test_one_that_reads_word_by_word(pace: list[int], peak: float, skipped: int) -> None:
    """pace: speech tokens of each text id; skipped: of an instruction."""
    looked = [skipped + text for text, tokens in enumerate(pace) for _ in range(tokens)]
    monotony, coverage, mean = scores_of(weights(looked, skipped + len(pace), peak), skipped).tolist()
    assert (monotony, coverage) == (1.0, 1.0) and mean == pytest.approx(peak, abs=1e-5)


@given(texts=st.integers(4, 40), tokens=st.integers(2, 100), seed=st.integers(0, 999))
def test_others_do_not_follow(texts: int, tokens: int, seed: int) -> None:
    chance = random.Random(seed)
    still = scores_of(weights([chance.randrange(texts)] * tokens, texts, 0.9)).tolist()
    assert still[:2] == pytest.approx([1.0, 1 / texts])
    backwards = scores_of(weights(list(range(texts))[::-1], texts, 0.9)).tolist()
    assert backwards[:2] == [0.0, 1.0]
    dull = scores_of(torch.full((tokens, texts), 1 / texts)).tolist()
    for found in (still, backwards, dull):
        assert not HeadScore((0, 0), *found).follows


@given(layers=st.integers(1, 4), heads=st.integers(1, 4), data=st.data())
def test_a_head_counts_as_in_its_worst_layout(layers: int, heads: int, data: st.DataObject) -> None:
    good, poor = torch.tensor([0.95, 0.9, 0.8]), torch.tensor([0.95, 0.2, 0.9])
    wanted = data.draw(st.integers(0, layers * heads - 1))
    one, other = poor.repeat(layers * heads, 1), torch.ones(layers * heads, 3)
    one[wanted] = other[wanted] = good
    kinds = [[each.view(layers, heads, 3)] * data.draw(st.integers(1, 3)) for each in (one, other)]
    found = best_head(kinds, heads)
    assert found.head == divmod(wanted, heads) and found.follows
    assert found.total == pytest.approx(0.95 * 0.9 * 0.8)


@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_those_of_the_model(seed: int) -> None:
    """Of every head, against products of one row at a time; a text that comes later has none."""
    model, chance = tiny.tiny_model(), random.Random(seed)
    texts, speech = tiny.CONFIG.text_vocab_size, model.space.speech_offset
    ids = [model.space.sos]
    for _ in range(3):
        ids += [chance.randrange(texts) for _ in range(4)] + [speech + chance.randrange(20) for _ in range(6)]
    found = text_weights(model, ids)
    places = [place for place, one in enumerate(ids) if one < texts]
    rows = [place - 1 for place, one in enumerate(ids) if one >= speech and place]
    assert found.shape == (tiny.CONFIG.num_hidden_layers, tiny.CONFIG.num_attention_heads, len(rows), len(places))
    for row, each in enumerate(rows):
        earlier = [place <= each for place in places]
        assert torch.equal(found[:, :, row] > 0, torch.tensor(earlier).expand_as(found[:, :, row]))
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))
    torch.testing.assert_close(found[:, :, -1], _of_one_row(model, ids, places, rows[-1]))


def _of_one_row(model: Qwen2Model, ids: list[int], places: list[int], row: int) -> torch.Tensor:
    found = []

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        share = query.shape[1] // key.shape[1]
        scores = [key[places, head // share] @ query[row, head] for head in range(query.shape[1])]
        found.append((torch.stack(scores) * query.shape[2] ** -0.5).softmax(-1))
        return attend_causal(query, key, value)

    with torch.inference_mode():
        model.forward_embedded(model.embed(torch.tensor(ids)), torch.arange(len(ids)), attend)
    return torch.stack(found)
