"""Runtime configuration is parsed from strings; a typo never passes silently."""

from __future__ import annotations

import dataclasses

import pytest

from bistream.config import RuntimeConfig
from bistream.contract.checks import SERVER_TEXT_NORMALIZATIONS
from bistream.errors import ConfigError


def test_strings_become_typed_fields() -> None:
    config = RuntimeConfig.from_strings({"model_dir": "m", "max_sessions": "3", "session_idle_timeout_s": "1.5", "kernels": "plain"})
    assert config == RuntimeConfig(model_dir="m", max_sessions=3, session_idle_timeout_s=1.5, kernels="plain")


def test_every_text_normalization_is_taken() -> None:
    for mode in SERVER_TEXT_NORMALIZATIONS:
        assert RuntimeConfig(text_normalization=mode).text_normalization == mode


def test_defaults_survive_a_round_trip_through_strings() -> None:
    strings = {key: str(value) for key, value in dataclasses.asdict(RuntimeConfig()).items()}
    assert RuntimeConfig.from_strings(strings) == RuntimeConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("modeldir", "x"), ("max_sessions", "many"), ("max_sessions", "0"), ("max_sessions", "1.5"), ("kernels", "maybe"),
        ("text_normalization", "fr"), ("engine", "vllm"), ("dtype", "int8"), ("session_idle_timeout_s", "-1"),
        ("session_idle_timeout_s", "nan"), ("session_idle_timeout_s", "inf"), ("drain_timeout_s", "-1"), ("drain_timeout_s", "nan"),
        ("drain_timeout_s", "inf"), ("min_reference_s", "31"), ("first_hop_tokens", "5"), ("solver_steps", "2"), ("solver_steps", "11"),
        ("watermark", "yes"),
    ],
)  # fmt: skip
def test_an_unknown_key_or_value_is_an_error_that_names_both(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig.from_strings({key: value})
    assert key in str(caught.value)
    assert value in str(caught.value) or "unknown" in str(caught.value)
