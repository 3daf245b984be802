"""Admission by capacity under any offered load, in a simulation."""

from __future__ import annotations

import random

import pytest

from tests.unit.sessions.crowd import Listener, Server, poisson

CAPACITY = 96.0  # audio seconds per second
MINUTE_TOKENS = 1500
PAGES = 250
HEARD_S = 0.02


def whole(starts_at_s: float) -> Listener:
    """26 s of audio, all text at once; the language model is four times as fast as speech."""
    return Listener(starts_at_s, 650, 100.0)


def gaps(listeners: list[Listener], heard_s: float = HEARD_S) -> list[float]:
    return [listener.silent_s for listener in listeners if listener.silent_s > heard_s]


def offer(load: float, seconds: float, seed: int = 1, **settings: object) -> Server:
    server = Server(poisson(random.Random(seed), load * CAPACITY / 26, seconds, whole), **settings)  # type: ignore[arg-type]
    server.run(seconds)
    return server


def test_below_capacity_nobody_is_refused() -> None:
    """But for a few of those who come just at the capacity while hops let a language model pass that always claims the GPU."""
    server = offer(1.0, 15.0, others_first=True)
    assert len(server.admitted()) >= 0.99 * len(server.offered)
    assert not gaps(server.admitted()) and server.first_audio_s(0.99) < 0.6


def test_beyond_capacity_nobody_who_was_admitted_hears_a_gap() -> None:
    server = offer(5.0, 30.0, others_first=True)
    assert not gaps(server.admitted())
    assert server.audio_s_per_s(15.0, 30.0) >= 0.8 * CAPACITY
    assert server.first_audio_s(0.99) < 0.6
    refused = [listener for listener in server.offered if not listener.admitted]
    assert refused and all(listener.retry_after_s is not None for listener in refused)


def test_a_pace_that_halves_is_known_within_seconds() -> None:
    """Those who were admitted before cannot be served any more; from 20 s later on, nobody hears more than a click."""
    server = offer(2.0, 70.0, slowness=lambda now_s: 2.0 if now_s > 20.0 else 1.0)
    assert len(server.admitted(21.0, 32.0)) < 0.7 * len(server.admitted(9.0, 20.0))
    assert not gaps(server.admitted(40.0), 0.05)
    assert server.audio_s_per_s(50.0, 70.0) >= 0.8 * CAPACITY / 2


@pytest.mark.parametrize("is_whole", [True, False])
def test_flow_state_suffices_for_those_who_were_admitted(is_whole: bool) -> None:
    """Of lengths from 2 to 60 s; text in pieces needs some ended sessions before their length is known."""
    chance = random.Random(3)
    server = Server(
        poisson(chance, 4.0, 60.0, lambda at_s: Listener(at_s, chance.randint(50, MINUTE_TOKENS), 60.0, is_whole)),
        pages=PAGES,
    )
    server.run(20.0)
    server.most_pages = 0.0
    server.run(60.0)
    assert PAGES / 4 < server.most_pages <= PAGES
    assert not gaps(server.admitted())
