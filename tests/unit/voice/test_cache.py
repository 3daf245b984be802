"""The cache keeps what is used again, whatever is used once, and stays within its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bistream.voice.cache import AGAIN_SHARE, VoiceCache, voice_bytes
from tests.unit.voice.voices import random_voice

VOICES = {name: random_voice(seed=index, tokens=5 + 20 * index) for index, name in enumerate("abcdefgh")}
OPERATIONS = st.lists(st.tuples(st.sampled_from(["get", "put"]), st.sampled_from("abcdefgh")), max_size=60)


@given(size=st.integers(1, 6), max_bytes=st.integers(1000, 200_000), operations=OPERATIONS)
def test_stays_within_its_bounds_and_answers_with_the_right_voice(size: int, max_bytes: int, operations: list[tuple[str, str]]) -> None:
    cache, known = VoiceCache(size, max_bytes), set[str]()
    for operation, name in operations:
        if operation == "put":
            cache.put(name, VOICES[name])
            known.add(name)
        else:
            assert cache.get(name) in ((None, VOICES[name]) if name in known else (None,))
        assert len(cache) <= size and cache.bytes <= max_bytes
    assert sum(voice_bytes(VOICES[name]) for name in VOICES if cache.get(name) is not None) == cache.bytes


@given(st.integers(4, 12), st.integers(1, 40), st.data())
def test_new_voices_do_not_displace_those_that_are_used_again(size: int, newcomers: int, data: st.DataObject) -> None:
    cache, voice = VoiceCache(size), random_voice()
    regulars = [f"regular {index}" for index in range(data.draw(st.integers(1, int(AGAIN_SHARE * size))))]
    for name in regulars:
        cache.put(name, voice)
        assert cache.get(name) is voice
    for index in range(newcomers):
        cache.put(f"newcomer {index}", voice)
        assert cache.get(regulars[index % len(regulars)]) is voice
    assert all(cache.get(name) is voice for name in regulars)


@given(st.integers(2, 8), st.lists(st.integers(0, 20), max_size=40))
def test_the_latest_voice_is_always_there(size: int, names: list[int]) -> None:
    cache, voice = VoiceCache(size), random_voice()
    for name in names:
        cache.get_or_build(str(name), lambda: voice)
        assert cache.get(str(name)) is voice


def test_a_voice_larger_than_the_cache_is_not_kept() -> None:
    cache = VoiceCache(4, max_bytes=100)
    assert cache.get_or_build("a", random_voice) is not cache.get_or_build("a", random_voice)
    assert len(cache) == cache.bytes == 0
