"""The bounds on requests: the same for the front model, the services behind it, the engine and the clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import LanguageModelConfig
from bistream.client.say import parse_arguments
from bistream.config import RuntimeConfig
from bistream.contract import checks as limits
from bistream.errors import InvalidInputError
from bistream.sessions.ports import BistreamRequest
from bistream.sessions.request_checks import check_start
from bistream.text2token.requested_sampling import make_sampling_spec
from bistream.text2token.sampler import DEFAULT_HISTORY, check_spec
from bistream.types import GenerationOptions

SIZES = LanguageModelConfig()
CONFIG = RuntimeConfig(default_speaker_id="anna")
# name -> values at the bounds, values just outside
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "temperature": ([0.0, 10.0], [-1e-9, math.nextafter(10.0, math.inf), math.nan, math.inf, -math.inf]),
    "top_k": ([1, 100], [0, -1, 101, 2**31 - 1]),
    "top_p": ([math.nextafter(0.0, 1.0), 1.0], [0.0, math.nextafter(1.0, 2.0), -0.5, math.nan, math.inf]),
    "speed": ([0.5, 2.0], [math.nextafter(0.5, 0.0), math.nextafter(2.0, 3.0), 0.0, math.nan, math.inf, -1.0]),
}
INSIDE = [(name, value) for name, (inside, _) in BOUNDS.items() for value in inside]
OUTSIDE = [(name, value) for name, (_, outside) in BOUNDS.items() for value in outside]


def check_alone(name: str, value: Any) -> None:
    getattr(limits, f"check_{name}")(value)


def check_at_the_front_model(name: str, value: Any) -> None:
    request = BistreamRequest(target_text=b"Hello.")
    if name == "speed":
        check_start(replace(request, speed=value), CONFIG)
    else:
        check_start(replace(request, options=GenerationOptions(**{name: value})), CONFIG)


def check_in_the_language_model(name: str, value: Any) -> None:
    assert name != "speed", "not the language model's"
    check_spec(make_sampling_spec(GenerationOptions(**{name: value}), SIZES), DEFAULT_HISTORY, "session")


def check_in_the_client(name: str, value: Any) -> None:
    try:
        parse_arguments(["--text", "Hello.", f"--{name.replace('_', '-')}={value!r}"])
    except SystemExit as error:
        raise InvalidInputError(name) from error


CHECKS = [check_alone, check_at_the_front_model, check_in_the_language_model, check_in_the_client]


def everywhere(values: list[tuple[str, Any]]) -> list[tuple[Callable[[str, Any], None], str, Any]]:
    return [(check, *value) for check in CHECKS for value in values if (check, value[0]) != (check_in_the_language_model, "speed")]


@pytest.mark.parametrize(("check", "name", "value"), everywhere(INSIDE))
def test_the_bounds_themselves_are_allowed_everywhere(check: Callable[[str, Any], None], name: str, value: Any) -> None:
    check(name, value)


@pytest.mark.parametrize(("check", "name", "value"), everywhere(OUTSIDE))
def test_values_outside_are_refused_everywhere(check: Callable[[str, Any], None], name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name):
        check(name, value)


def test_omitted_values_are_the_checkpoints() -> None:
    spec = make_sampling_spec(GenerationOptions(), SIZES)
    assert (spec.top_k, spec.top_p) == (SIZES.top_k, SIZES.top_p)


@settings(deadline=None)
@given(st.text(), st.integers(0, 12))
def test_characters_count_once_however_the_bytes_are_cut(text: str, cut: int) -> None:
    data = text.encode("utf-8", errors="ignore")
    assert limits.count_characters(data[:cut]) + limits.count_characters(data[cut:]) == len(data.decode("utf-8"))


@pytest.mark.parametrize("check", [limits.check_text_length, limits.check_transcript_length])
def test_a_text_may_be_as_long_as_the_limit(check: Callable[[int, int], None]) -> None:
    check(10, 10)
    with pytest.raises(InvalidInputError, match="longer than 10 characters"):
        check(11, 10)


@pytest.mark.parametrize("session_id", ["a", "A.b:c_d-9", "x" * 128])
def test_a_session_id_that_fits(session_id: str) -> None:
    limits.check_session_id(session_id)


@pytest.mark.parametrize("check", [limits.check_session_id, limits.check_speaker_id, limits.check_speaker_name])
@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "line\n", "../x"])
def test_an_id_that_does_not_fit(check: Callable[[str], None], name: str) -> None:
    with pytest.raises(InvalidInputError, match="_id must be"):
        check(name)
