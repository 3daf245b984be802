"""Templates, model code, configuration and wire contract agree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from bistream.config import RuntimeConfig
from bistream.contract.fields import CONTRACTS, ModelContract
from scripts.fill_template import fill, placeholders
from scripts.make_model_repo import default_values, read_template
from scripts.write_contract import DOCUMENT, filled_document, filled_template

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name for field in dataclasses.fields(RuntimeConfig)}
DEFAULTS = json.loads((ROOT / "templates/defaults.json").read_text(encoding="utf-8"))


def parse(contract: ModelContract) -> model_config_pb2.ModelConfig:
    template = read_template(contract.name)
    values = {name: value for name, value in {**default_values(), "model_dir": "/m"}.items() if name in placeholders(template)}
    return text_format.Parse(fill(template, values), model_config_pb2.ModelConfig())


each_model = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)


def test_every_template_has_its_model_and_the_reverse() -> None:
    names = {contract.name for contract in CONTRACTS}
    assert {path.name for path in (ROOT / "templates").iterdir() if path.is_dir()} == names
    assert {path.name for path in (ROOT / "model_repo").iterdir() if path.is_dir()} == names


def test_every_placeholder_has_one_default() -> None:
    used = set().union(*(placeholders(read_template(contract.name)) for contract in CONTRACTS))
    assert used <= FIELDS | set(DEFAULTS)
    assert set(DEFAULTS) <= used and not set(DEFAULTS) & FIELDS


@each_model
def test_parameters_are_fields_of_the_runtime_configuration(contract: ModelContract) -> None:
    config = parse(contract)
    assert set(config.parameters) <= FIELDS
    assert "model_dir" in config.parameters
    values = {key: parameter.string_value for key, parameter in config.parameters.items()}
    assert RuntimeConfig.from_strings(values) == RuntimeConfig(model_dir="/m")


@each_model
def test_templates_are_written_from_the_table_of_fields(contract: ModelContract) -> None:
    template = read_template(contract.name)
    assert filled_template(template, contract) == template, "run scripts/write_contract.py"
    config = parse(contract)
    assert config.name == contract.name and config.backend == "python"
    assert (config.max_batch_size > 0) == contract.is_batched == config.HasField("dynamic_batching")
    assert config.model_transaction_policy.decoupled == contract.decoupled
    assert [tensor.name for tensor in config.input] == [field.name for field in contract.inputs]
    assert [tensor.optional for tensor in config.input] == [field.optional for field in contract.inputs]


def test_the_tables_of_the_wire_protocol_are_written_from_the_table_of_fields() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert filled_document(text) == text, "run scripts/write_contract.py"


@each_model
def test_every_parameter_is_explained(contract: ModelContract) -> None:
    lines = read_template(contract.name).splitlines()
    for above, line in zip(lines, lines[1:], strict=False):
        if line.startswith("parameters"):
            assert above.startswith("# "), line
