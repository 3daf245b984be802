"""Speech in pieces: equal to one call however it is cut and whatever else is in the batch, with a state that does not grow; and what may be
heard sooner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.bicodec.decoding import decode
from bistream.bicodec.stream import SpeechDecoder, TokenPush, reach_samples
from bistream.errors import InvalidInputError
from bistream.types import FloatArray, IntArray
from tests.unit.bicodec.tiny import codec, tokens, voice

TOLERANCE = 5e-5  # float32; several layers deep, with other sizes of the same products


def whole(semantic: IntArray, name: str = "tiny", seed: int = 0) -> FloatArray:
    return decode(codec(name), [semantic], [voice(seed)])[0]


def pieces_of(semantic: IntArray, cuts: Sequence[int]) -> list[IntArray]:
    return np.split(semantic, sorted(min(cut, len(semantic)) for cut in cuts))


def streamed(decoder: SpeechDecoder, pieces: Sequence[IntArray]) -> FloatArray:
    state = decoder.open(voice())
    return np.concatenate([decoder.push([TokenPush(state, piece, i == len(pieces) - 1)])[0] for i, piece in enumerate(pieces)])


def noise_db(found: FloatArray, expected: FloatArray) -> float:
    """Signal to error."""
    return float(10 * np.log10(np.square(expected).sum() / np.square(found - expected).sum()))


@pytest.mark.parametrize("name", ["tiny", "resampled", "deep"])
@settings(max_examples=4)
@given(count=st.integers(0, 150), cuts=st.lists(st.integers(0, 150), max_size=8))
def test_any_cuts_give_the_audio_of_one_call(name: str, count: int, cuts: list[int]) -> None:
    semantic = tokens(count)
    found, expected = streamed(SpeechDecoder(codec(name)), pieces_of(semantic, cuts)), whole(semantic, name)
    assert len(found) == len(expected) == count * codec(name).config.samples_per_token
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@settings(max_examples=5)
@given(st.lists(st.tuples(st.integers(0, 90), st.lists(st.integers(0, 90), min_size=4, max_size=4)), min_size=1, max_size=4))
def test_rows_of_a_batch_do_not_hear_each_other(speeches: list[tuple[int, list[int]]]) -> None:
    decoder = SpeechDecoder(codec())
    rows = [pieces_of(tokens(count, row), cuts) for row, (count, cuts) in enumerate(speeches)]
    states = [decoder.open(voice(row)) for row in range(len(rows))]
    audio: list[list[FloatArray]] = [[] for _ in rows]
    for step in range(5):
        pushes = [TokenPush(state, pieces[step], step == 4) for state, pieces in zip(states, rows, strict=True)]
        for row, samples in enumerate(decoder.push(pushes)):
            audio[row].append(samples)
    for row, (count, _) in enumerate(speeches):
        np.testing.assert_allclose(np.concatenate(audio[row]), whole(tokens(count, row), seed=row), rtol=0, atol=TOLERANCE)


@settings(max_examples=5)
@given(st.data())
def test_what_is_heard_is_what_one_call_makes_of_the_tokens_so_far(data: st.DataObject) -> None:
    """Whatever the cuts and the lookaheads: the samples of a push are those of the whole speech so far, at their place."""
    name = data.draw(st.sampled_from(["tiny", "resampled"]))
    network, count = codec(name), data.draw(st.integers(1, 150))
    size, semantic = network.config.samples_per_token, tokens(count)
    decoder = SpeechDecoder(network)
    state, received = decoder.open(voice()), 0
    pieces = pieces_of(semantic, data.draw(st.lists(st.integers(0, count), max_size=7)))
    for index, piece in enumerate(pieces):
        is_last, lookahead = index == len(pieces) - 1, data.draw(st.none() | st.integers(0, 70))
        received, before = received + len(piece), state.emitted_samples
        (samples,) = decoder.push([TokenPush(state, piece, is_last, lookahead)])
        expected = whole(semantic[:received], name)[before : before + len(samples)]
        np.testing.assert_allclose(samples, expected, rtol=0, atol=TOLERANCE)
        behind = 0 if is_last else decoder.reach if lookahead is None else min(lookahead, decoder.reach)
        assert before + len(samples) == state.emitted_samples <= received * size
        assert state.emitted_samples >= (received - behind) * size, "nothing that is due is withheld"


def test_samples_that_follow_early_ones_are_exact() -> None:
    semantic = tokens(120)
    exact, size = whole(semantic), codec().config.samples_per_token
    decoder = SpeechDecoder(codec())
    state = decoder.open(voice())
    heard = [decoder.push([TokenPush(state, semantic[:15], lookahead=5)])[0]]
    heard += [decoder.push([TokenPush(state, piece, is_last)])[0] for piece, is_last in ((semantic[15:90], False), (semantic[90:], True))]
    first = 10 * size
    found = np.concatenate(heard)
    assert len(heard[0]) == first and noise_db(found[:first], exact[:first]) < 60
    np.testing.assert_allclose(found[first:], exact[first:], rtol=0, atol=TOLERANCE)


def test_the_error_of_early_samples_falls_with_the_lookahead() -> None:
    semantic, size = tokens(120), codec().config.samples_per_token
    exact = whole(semantic)[: 15 * size]
    errors = []
    for lookahead in (0, 5, 15, 25):
        decoder = SpeechDecoder(codec())
        (samples,) = decoder.push([TokenPush(decoder.open(voice()), semantic[: 15 + lookahead], lookahead=lookahead)])
        errors.append(noise_db(samples, exact))
    assert errors == sorted(errors) and errors[-1] > errors[0] + 20


@pytest.mark.parametrize("lookahead", [None, 0, 5])
def test_the_state_does_not_grow(lookahead: int | None) -> None:
    decoder = SpeechDecoder(codec())
    state = decoder.open(voice())
    sizes = []
    for step in range(20):
        decoder.push([TokenPush(state, tokens(25, step), lookahead=lookahead if step % 3 else None)])
        sizes.append(state.numbers)
    assert max(sizes[10:]) == max(sizes) < 10_000
    decoder.push([TokenPush(state, tokens(1), final=True)])
    assert state.numbers == 0


def test_the_released_depths_look_67_tokens_ahead() -> None:
    """Upstream's class, measured with NaN and by exact comparison: -21381 samples."""
    decoder = SpeechDecoder(codec("deep"))
    assert decoder.reach == 67
    assert reach_samples(codec("deep"))[0] == 21_381


@pytest.mark.parametrize("name", ["tiny", "deep"])
def test_the_reach_is_what_a_token_can_change(name: str) -> None:
    """As far as rounding shows it: the outermost samples change by less."""
    late, _ = reach_samples(codec(name))
    size, count = codec(name).config.samples_per_token, 160
    semantic = tokens(count)
    changed = semantic.copy()
    changed[count // 2] = (changed[count // 2] + 1) % codec(name).config.quantizer.codes
    differs = np.flatnonzero(np.abs(whole(changed, name) - whole(semantic, name)) > TOLERANCE)
    first = count // 2 * size
    assert first - late <= differs[0] < first - late // 4
    assert first + late // 4 < differs[-1] < first + size + late


def test_an_ended_speech_takes_no_more_tokens() -> None:
    decoder = SpeechDecoder(codec())
    state = decoder.open(voice())
    decoder.push([TokenPush(state, tokens(3), final=True)])
    with pytest.raises(InvalidInputError, match="has ended"):
        decoder.push([TokenPush(state, tokens(3))])


def test_nothing_changes_where_a_token_is_unknown() -> None:
    decoder = SpeechDecoder(codec())
    good, bad = decoder.open(voice()), decoder.open(voice())
    unknown = np.array([codec().config.quantizer.codes], np.int32)
    with pytest.raises(InvalidInputError, match="only 0 to 511 exist"):
        decoder.push([TokenPush(good, tokens(3)), TokenPush(bad, unknown)])
    with pytest.raises(InvalidInputError, match="send 0 or more"):
        decoder.push([TokenPush(good, tokens(3)), TokenPush(bad, tokens(3), lookahead=-1)])
    assert good.received_tokens == bad.received_tokens == 0


def test_a_voice_has_a_fixed_number_of_tokens() -> None:
    with pytest.raises(InvalidInputError, match="32 global tokens"):
        SpeechDecoder(codec()).open(voice()[:31])
    with pytest.raises(InvalidInputError, match="only 0 to 255 exist"):
        SpeechDecoder(codec()).open(voice() + 256)


def test_no_push_no_audio() -> None:
    assert SpeechDecoder(codec()).push([]) == []
