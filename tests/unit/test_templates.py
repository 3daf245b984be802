"""Templates, model code, configuration and wire contract agree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from bistream.config import RuntimeConfig
from bistream.wire import CONTRACTS, ModelContract, TensorSpec
from scripts.fill_template import fill, placeholders
from scripts.make_model_repo import default_values, read_template

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name for field in dataclasses.fields(RuntimeConfig)}
DEFAULTS = json.loads((ROOT / "templates/defaults.json").read_text(encoding="utf-8"))
WIRE_NAMES = {f"TYPE_{name}": name for name in ("FP32", "INT32", "INT64", "BOOL", "UINT8")} | {"TYPE_STRING": "BYTES"}


def parse(contract: ModelContract) -> model_config_pb2.ModelConfig:
    template = read_template(contract.name)
    values = {name: value for name, value in {**default_values(), "model_dir": "/m"}.items() if name in placeholders(template)}
    return text_format.Parse(fill(template, values), model_config_pb2.ModelConfig())


def spec_of(tensor: model_config_pb2.ModelInput | model_config_pb2.ModelOutput, batch: tuple[int, ...] = ()) -> TensorSpec:
    """batch: the axis that Triton adds to the input of a batched model."""
    datatype = WIRE_NAMES[model_config_pb2.DataType.Name(tensor.data_type)]
    return TensorSpec(tensor.name, datatype, (*batch, *tensor.dims), getattr(tensor, "optional", False))


each_model = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)


def test_every_template_has_its_model_and_the_reverse() -> None:
    names = {contract.name for contract in CONTRACTS}
    assert {path.name for path in (ROOT / "templates").iterdir() if path.is_dir()} == names
    assert {path.name for path in (ROOT / "model_repo").iterdir() if path.is_dir()} == names


def test_templates_hold_no_code_and_model_code_no_configuration() -> None:
    assert not list((ROOT / "templates").rglob("*.py"))
    assert not list((ROOT / "model_repo").rglob("config.pbtxt"))
    assert all((ROOT / "model_repo" / contract.name / "1" / "model.py").is_file() for contract in CONTRACTS)


def test_model_code_is_thin() -> None:
    for path in (ROOT / "model_repo").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 200, path


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
def test_tensors_are_those_of_the_wire_contract(contract: ModelContract) -> None:
    config = parse(contract)
    assert config.name == contract.name and config.backend == "python"
    batch = (1,) if contract.is_batched else ()
    assert (config.max_batch_size > 0) == contract.is_batched == config.HasField("dynamic_batching")
    assert tuple(spec_of(tensor, batch) for tensor in config.input) == contract.inputs
    assert all(tensor.allow_ragged_batch == contract.is_batched for tensor in config.input)
    assert tuple(spec_of(tensor) for tensor in config.output) == contract.outputs
    assert config.model_transaction_policy.decoupled == contract.decoupled


@each_model
def test_models_with_state_have_one_instance(contract: ModelContract) -> None:
    (group,) = parse(contract).instance_group
    assert group.count == 1 and group.kind == model_config_pb2.ModelInstanceGroup.KIND_CPU


@each_model
def test_every_parameter_is_explained(contract: ModelContract) -> None:
    lines = read_template(contract.name).splitlines()
    for above, line in zip(lines, lines[1:], strict=False):
        if line.startswith("parameters"):
            assert above.startswith("# "), line
