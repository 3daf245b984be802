"""The cache keeps the most recent voices, builds each once for any number of concurrent callers, and does not keep failures."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import EngineError
from bistream.types import VoicePrompt
from bistream.voice.cache import VoiceCache
from tests.unit.voice.voices import random_voice

WAIT_S = 20.0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(1, 4), keys=st.lists(st.sampled_from("abcdef"), max_size=40))
def test_behaves_as_a_least_recently_used_table(size: int, keys: list[str]) -> None:
    cache, model, voice = VoiceCache(size), OrderedDict[str, None](), random_voice()
    for key in keys:
        built: list[str] = []

        def build(key: str = key, built: list[str] = built) -> VoicePrompt:
            built.append(key)
            return voice

        assert cache.get_or_build(key, build) is voice
        assert built == ([] if key in model else [key])
        model[key] = None
        model.move_to_end(key)
        if len(model) > size:
            model.popitem(last=False)
        assert len(cache) == len(model)


def test_one_build_for_many_concurrent_callers() -> None:
    cache, asked, release = VoiceCache(2), threading.Semaphore(0), threading.Event()
    builds: list[int] = []

    def build() -> VoicePrompt:
        builds.append(1)
        assert release.wait(WAIT_S)
        return random_voice()

    def ask() -> VoicePrompt:
        asked.release()
        return cache.get_or_build("voice", build)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(ask) for _ in range(8)]
        for _ in futures:
            assert asked.acquire(timeout=WAIT_S)
        assert not any(future.done() for future in futures)
        release.set()
        voices = {id(future.result(WAIT_S)) for future in futures}
    assert len(voices) == 1
    assert builds == [1]


def test_a_slow_voice_does_not_delay_another() -> None:
    cache, release = VoiceCache(2), threading.Event()

    def slow() -> VoicePrompt:
        assert release.wait(WAIT_S)
        return random_voice()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(cache.get_or_build, "slow", slow)
        cache.get_or_build("quick", random_voice)
        assert not future.done()
        release.set()
        future.result(WAIT_S)
    assert len(cache) == 2


def test_failure_reaches_all_waiting_callers_and_is_forgotten() -> None:
    cache, entered, release = VoiceCache(2), threading.Event(), threading.Event()

    def fail() -> VoicePrompt:
        entered.set()
        assert release.wait(WAIT_S)
        raise EngineError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get_or_build, "voice", fail)
        assert entered.wait(WAIT_S)
        second = pool.submit(cache.get_or_build, "voice", fail)
        release.set()
        for future in (first, second):
            with pytest.raises(EngineError):
                future.result(WAIT_S)
    assert len(cache) == 0
    voice = random_voice()
    assert cache.get_or_build("voice", lambda: voice) is voice
