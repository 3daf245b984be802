"""Variables of a container become settings of templates and options of serve.py, each of them or an error that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import ConfigError
from scripts.serve import make_parser
from scripts.serve_from_environment import Plan, main, read_plan, serve_variables, template_variables

ROOT = Path(__file__).resolve().parents[2]
HERE = {"MODEL_DIR": str(ROOT)}
ALL = [*template_variables(), *serve_variables()]


def plan(**variables: str) -> Plan:
    return read_plan({**HERE, **{f"BISTREAM__{name}": value for name, value in variables.items()}})


def test_a_setting_of_one_model_a_shared_one_and_an_option() -> None:
    found = plan(
        LLM_BISTREAM__MAX_SESSIONS="128", VOICES_DIR="/voices", SERVE__SESSIONS_PER_KEY="64", SERVE__DIRECT="true", SERVE__MPS="off"
    )
    assert found.settings == {"model_dir": str(ROOT), "llm_bistream.max_sessions": "128", "voices_dir": "/voices"}
    assert found.serve_words == ["--direct", "--mps=off", "--sessions-per-key=64"]


def test_every_option_of_serve_and_of_the_gate_has_a_variable() -> None:
    options = {option for action in serve_variables().values() for option in action.option_strings}
    assert {"--grpc-port", "--drain-timeout-s", "--keys-file", "--tls-key", "--sessions-per-address", "--max-sessions"} <= options


@given(st.sampled_from(sorted(serve_variables())), st.integers(1, 9))
def test_what_comes_out_is_what_serve_understands(name: str, number: int) -> None:
    action = serve_variables()[name]
    value = "true" if action.nargs == 0 else str(action.choices[0]) if action.choices else str(number)  # type: ignore[index]
    parsed = make_parser().parse_args(read_plan({**HERE, name: value}).serve_words)
    assert str(getattr(parsed, action.dest)).lower() in (value, f"{value}.0")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("BISTREAM__LLM_BISTREAM__MAX_SESIONS", "BISTREAM__LLM_BISTREAM__MAX_SESSIONS"),
        ("BISTREAM__LLMBISTREAM__MAX_SESSIONS", "BISTREAM__LLM_BISTREAM__MAX_SESSIONS"),
        ("BISTREAM__SERVE__SESSION_PER_KEY", "BISTREAM__SERVE__SESSIONS_PER_KEY"),
        ("BISTREAM__TOKEN2WAV__WARMTH", "BISTREAM__TOKEN2WAV__"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_plan({**HERE, name: "1"})
    sentence = str(error.value)
    assert sentence.startswith(f"{name} is not a setting; did you mean ") and nearest in sentence and sentence.count("\n") == 0


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", min_size=1, max_size=30).filter(lambda name: f"BISTREAM__{name}" not in ALL))
def test_no_unknown_name_is_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^BISTREAM__{name} is not a setting; "):
        plan(**{name: "1"})


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"SERVE__GRPC_PORT": "x"}, "BISTREAM__SERVE__GRPC_PORT is 'x'; a port from 1 to 65535 is needed."),
        ({"SERVE__MAX_RESTARTS": "x"}, "BISTREAM__SERVE__MAX_RESTARTS is 'x'; a whole number is needed."),
        ({"SERVE__DRAIN_TIMEOUT_S": "1m"}, "BISTREAM__SERVE__DRAIN_TIMEOUT_S is '1m'; a number is needed."),
        ({"SERVE__DIRECT": "maybe"}, "BISTREAM__SERVE__DIRECT is 'maybe'; it is true or false."),
        ({"SERVE__MPS": "yes"}, "BISTREAM__SERVE__MPS is 'yes'; it is one of auto, on, off."),
    ],
)
def test_a_wrong_value_is_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(**variables)
    assert str(error.value) == sentence


def test_what_no_server_could_serve_is_refused_before_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.serve_from_environment.os.environ", {"MODEL_DIR": str(tmp_path), "MODEL_REPO": str(tmp_path / "repo")})
    assert main([]) == 1
    assert f"{tmp_path}" in capsys.readouterr().err and not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("words", "code", "output"),
    [
        (["sh", "-c", "echo here; exit 3"], 3, "here"),
        (["--names"], 0, "BISTREAM__LLM_BISTREAM__MAX_SESSIONS"),
        ([], 1, "MODEL_DIR is not set"),
    ],
)
def test_the_entrypoint_serves_or_runs_a_command(words: list[str], code: int, output: str) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable}
    done = subprocess.run([str(ROOT / "deploy/entrypoint.sh"), *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code and output in done.stdout + done.stderr and "Traceback" not in done.stderr
