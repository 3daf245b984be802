"""Filling templates: strict about keys, careful with values, NVIDIA's call form included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from scripts.fill_template import TemplateError, fill, main, parse_pairs

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = """# A comment with a "quote
name: "m"
max_batch_size: ${size}
parameters { key: "model_dir" value { string_value: "${model_dir}" } }
parameters { key: "also" value { string_value: "a-${model_dir}-z#${size}" } }
"""


def value_of(text: str, key: str) -> str:
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return str(config.parameters[key].string_value)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "config.pbtxt"
    path.write_text(TEMPLATE, encoding="utf-8")
    return path


@example("\\")
@example('"')
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])).filter(lambda value: "${" not in value))
def test_any_value_arrives_in_the_parsed_configuration(value: str) -> None:
    text = fill(TEMPLATE, {"size": "0", "model_dir": value})
    assert value_of(text, "model_dir") == value
    assert value_of(text, "also") == f"a-{value}-z#0"


def test_a_value_that_is_an_unreplaced_variable_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"model_dir holds '\$\{'"):
        fill(TEMPLATE, {"size": "0", "model_dir": "/models/${name}"})


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(), min_size=1, max_size=4))
def test_escaped_pairs_survive_a_round_trip(values: dict[str, str]) -> None:
    pairs = ",".join(f"{key}:{value}".replace("\\", "\\\\").replace(",", "\\,") for key, value in values.items())
    assert parse_pairs(pairs) == values


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"size": "0"}, "model_dir"),
        ({"size": "0", "model_dir": "x", "model": "y"}, "model"),
        ({"size": "0", "model_dir": "x", "other": "y"}, "other"),
        ({"size": "0 }", "model_dir": "x"}, "size"),
        ({"size": "0", "model_dir": "two\nlines"}, "model_dir"),
        ({"size": "many", "model_dir": "x"}, "valid model configuration"),
    ],
)
def test_wrong_keys_and_values_are_refused(values: dict[str, str], named: str) -> None:
    with pytest.raises(TemplateError, match=named):
        fill(TEMPLATE, values)


def test_a_filled_file_cannot_be_filled_again() -> None:
    text = fill(TEMPLATE, {"size": "0", "model_dir": "x"})
    with pytest.raises(TemplateError, match="filled already"):
        fill(text, {"size": "0", "model_dir": "x"})


def test_nvidias_call_form_fills_in_place(template: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/fill_template.py"), "-i", str(template), r"size:8,model_dir:s3://bucket/a\,b"]
    subprocess.run(command, check=True)
    text = template.read_text(encoding="utf-8")
    assert value_of(text, "model_dir") == "s3://bucket/a,b" and "max_batch_size: 8" in text


def test_an_error_writes_nothing(template: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-i", str(template), "size:0"]) == 1
    assert "model_dir" in capsys.readouterr().err
    assert template.read_text(encoding="utf-8") == TEMPLATE
