"""What is let through, and that nothing else ever is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from bistream.contract.fields import CONTRACTS, COSYVOICE2
from bistream.errors import InvalidInputError
from gateway.messages import (
    error_bytes,
    is_final,
    parse_request,
    read_request,
    request_bytes,
    wants_empty_final,
)
from gateway.requests import PUBLIC
from gateway.settings import GateLimits
from tests.unit.gateway.requests import BISTREAM, OFFLINE, SPARK, message

LIMITS = GateLimits(max_text_bytes=100, max_recording_s=1.0)


def refusal(wrong: Any) -> str:
    with pytest.raises(InvalidInputError) as refused:
        read_request(wrong, LIMITS)
    sentence = refused.value.sentence
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def damaged(change: Any, **values: Any) -> Any:
    made = message(**{"target_text": "Hello", **values})
    change(made)
    return made


def set_shape(made: Any, *shape: int) -> None:
    made.inputs[0].shape[:] = shape


def text_parameter(value: str) -> Any:
    return service_pb2.InferParameter(string_param=value)


MANY: dict[str, Any] = {f"a{number}": "x" for number in range(len(COSYVOICE2.inputs) + 1)}
WRONG: dict[str, tuple[Any, str]] = {
    "unknown model": (message(model="nope", target_text="x"), "nope"),
    "inner model": (message(model="llm_bistream", target_text="x"), "llm_bistream"),
    "no model": (message(model="", target_text="x"), "''"),
    "another version": (damaged(lambda made: setattr(made, "model_version", "2")), "version 1"),
    "no input at all": (message(), "no input"),
    "unknown input": (message(target_text="x", volume=1.0), "volume"),
    "an input of the other model": (message(model=OFFLINE, target_text="x", seed=1), "seed"),
    "a missing input": (message(model=OFFLINE, reference_text="x"), "target_text"),
    "an input twice": (damaged(lambda made: made.MergeFrom(message(target_text="y"))), "twice"),
    "more inputs than there are": (message(model=OFFLINE, **MANY), f"{len(MANY)} inputs"),
    "a hash too short": (message(target_text="x", reference_hash="0" * 63), "64 lower-case"),
    "a hash too long": (message(target_text="x", reference_hash="0" * 65), "64 lower-case"),
    "a hash in capitals": (message(model=OFFLINE, target_text="x", reference_hash="A" * 64), "64 lower-case"),
    "a hash and a line": (message(target_text="x", reference_hash="0" * 64 + "\n"), "64 lower-case"),
    "a name for a hash": (message(target_text="x", reference_hash="speaker:anna"), "64 lower-case"),
    "another type": (damaged(lambda made: setattr(made.inputs[0], "datatype", "FP32")), "FP32"),
    "no type": (damaged(lambda made: setattr(made.inputs[0], "datatype", "")), "BYTES [1, 1]"),
    "another rank": (damaged(lambda made: set_shape(made, 1)), "[1]"),
    "another size": (damaged(lambda made: set_shape(made, 1, 2)), "[1, 2]"),
    "a negative size": (damaged(lambda made: set_shape(made, 1, -1), reference_wav=[0.0]), "-1"),
    "a huge shape": (damaged(lambda made: set_shape(made, 2**62, 2**62)), "shape"),
    "contents too short": (damaged(lambda made: made.raw_input_contents.__setitem__(0, b"\5\0\0\0Hell")), "target_text"),
    "contents too long": (damaged(lambda made: made.raw_input_contents.__setitem__(0, b"\5\0\0\0Hello!")), "target_text"),
    "a length without contents": (damaged(lambda made: made.raw_input_contents.__setitem__(0, b"\xff\xff\xff\x7f")), "target_text"),
    "no contents": (damaged(lambda made: made.raw_input_contents.__setitem__(0, b"")), "target_text"),
    "contents of nothing": (damaged(lambda made: made.raw_input_contents.append(b"x")), "raw contents"),
    "fewer contents than inputs": (damaged(lambda made: made.raw_input_contents.pop(), is_end=True), "raw contents"),
    "values too few": (damaged(lambda made: made.raw_input_contents.__setitem__(1, b"\0" * 8), reference_wav=[0.0] * 3), "reference_wav"),
    "both kinds of contents": (damaged(lambda made: made.inputs[0].contents.bytes_contents.append(b"x")), "contents"),
    "shared memory": (
        damaged(lambda made: made.inputs[0].parameters["shared_memory_region"].MergeFrom(text_parameter("x"))),
        "Shared memory",
    ),
    "output to shared memory": (
        damaged(lambda made: made.outputs.add(name="waveform").parameters["shared_memory_region"].MergeFrom(text_parameter("x"))),
        "Shared memory",
    ),
    "classification": (
        damaged(lambda made: setattr(made.outputs.add(name="waveform").parameters["classification"], "int64_param", 1)),
        "Classification",
    ),
    "unknown output": (message(target_text="x", outputs=("NOPE",)), "NOPE"),
    "an output twice": (message(target_text="x", outputs=("waveform", "waveform")), "twice"),
    "too much text": (message(target_text="x" * 101), "100 bytes"),
    "too much transcript": (message(target_text="x", reference_text="x" * 101), "100 bytes"),
    "too long a source": (message(model=OFFLINE, source_wav=[0.0] * 16_001), "source_wav lasts more than 1 s"),
    "too much instruction": (message(target_text="x", instruct_text="x" * 101), "100 bytes"),
    "too long a recording": (message(target_text="x", reference_wav=[0.0] * 16_001), "1 s"),
    "an id with a blank": (message(target_text="x", session_id="a b"), "session_id"),
    "an unknown normalization": (message(target_text="x", text_normalization="fr"), "text_normalization"),
    "an empty id": (message(target_text="x", session_id=""), "session_id"),
    "an id that is no text": (message(target_text="x", session_id=b"\xff"), "session_id"),
    "an id over 128 characters": (message(target_text="x", session_id="a" * 129), "session_id"),
    "a long speaker": (message(target_text="x", speaker_id="a" * 65), "speaker_id"),
    "a speaker that is a path": (message(model=OFFLINE, target_text="x", speaker_id="../a"), "speaker_id"),
    "a speaker that is no text": (message(target_text="x", speaker_id=b"\xff"), "speaker_id"),
    "a long request id": (message(request_id="a" * 1025, target_text="x"), "request id"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused(name: str) -> None:
    wrong, word = WRONG[name]
    assert word in refusal(wrong)


def test_both_front_models_and_no_other_model_are_public() -> None:
    assert set(PUBLIC) == {BISTREAM, OFFLINE, SPARK} < {contract.name for contract in CONTRACTS}


def forwarded(made: Any, own_id: str = "7") -> Any:
    request = read_request(made, GateLimits())
    return service_pb2.ModelInferRequest.FromString(request_bytes(request, own_id, request.tensors))


def test_what_is_right_goes_on_as_it_is_under_an_id_of_ours() -> None:
    made = message(
        target_text="Hi", session_id="s", reference_wav=[0.5] * 8000, seed=2**40, top_k=3, top_p=0.5, is_end=True, outputs=("waveform",)
    )
    went = forwarded(made)
    assert went.id == "7" and went.model_name == BISTREAM and wants_empty_final(went)
    assert list(went.inputs) == list(made.inputs) and went.raw_input_contents == made.raw_input_contents
    assert [output.name for output in went.outputs] == ["waveform"]


def test_parameters_and_unknown_fields_of_a_client_stay_behind() -> None:
    made = message(wants_final=False, target_text="Hi")
    made.parameters["sequence_id"].int64_param = 3
    made.parameters["triton_grpc_error"].bool_param = True
    made.inputs[0].parameters["binary_data_size"].int64_param = 6
    data = made.SerializeToString() + b"\x9a\x06\x03abc"  # field 99
    went = forwarded(parse_request(data))
    assert list(went.parameters) == ["triton_enable_empty_final_response"] and not went.inputs[0].parameters
    assert b"abc" not in went.SerializeToString()


def test_typed_contents_become_raw_ones() -> None:
    made = service_pb2.ModelInferRequest(model_name=BISTREAM)
    for name, datatype, shape, contents in (
        ("target_text", "BYTES", (1, 1), {"bytes_contents": [b"Hi"]}),
        ("is_end", "BOOL", (1, 1), {"bool_contents": [True]}),
        ("seed", "INT64", (1, 1), {"int64_contents": [2]}),
        ("top_k", "INT32", (1, 1), {"int_contents": [5]}),
        ("reference_wav", "FP32", (1, 2), {"fp32_contents": [0.5, -0.5]}),
    ):
        made.inputs.add(name=name, datatype=datatype, shape=shape, contents=service_pb2.InferTensorContents(**contents))
    expected = message(target_text="Hi", is_end=True, seed=2, top_k=5, reference_wav=[0.5, -0.5])
    assert forwarded(made).raw_input_contents == expected.raw_input_contents


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_no_request(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        read_request(parse_request(data), GateLimits())


NAMES = st.sampled_from([spec.name for contract in CONTRACTS for spec in contract.inputs] + ["", "x"])
TENSORS = st.tuples(
    NAMES,
    st.sampled_from(["BYTES", "FP32", "BOOL", "INT32", "INT64", "FP64", ""]),
    st.lists(st.integers(-1, 3), max_size=3),
    st.one_of(st.binary(max_size=24), st.binary(max_size=8).map(lambda text: len(text).to_bytes(4, "little") + text)),
)


@given(
    st.sampled_from([BISTREAM, OFFLINE, "llm_bistream"]),
    st.lists(TENSORS, max_size=5),
    st.lists(st.sampled_from(["waveform", "text_consumed", "x"]), max_size=3),
)
def test_whatever_is_let_through_fits_the_contract(
    model: str, tensors: list[tuple[str, str, list[int], bytes]], outputs: list[str]
) -> None:
    made = service_pb2.ModelInferRequest(model_name=model, id="r")
    for name, datatype, shape, raw in tensors:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(raw)
    for name in outputs:
        made.outputs.add(name=name)
    try:
        went = forwarded(made)
    except InvalidInputError:
        return
    contract = PUBLIC[went.model_name]
    specs = {spec.name: spec for spec in contract.inputs}
    assert len({tensor.name for tensor in went.inputs}) == len(went.inputs) == len(went.raw_input_contents)
    for tensor, raw in zip(went.inputs, went.raw_input_contents, strict=True):
        spec = specs[tensor.name]
        assert tensor.datatype == spec.datatype and len(tensor.shape) == len(spec.dims)
        assert all(wanted in (-1, found) and found >= 0 for found, wanted in zip(tensor.shape, spec.dims, strict=True))
        if spec.datatype == "BYTES":
            assert len(raw) == 4 + int.from_bytes(raw[:4], "little")
        else:
            assert len(raw) == {"BOOL": 1, "INT32": 4, "FP32": 4, "INT64": 8}[spec.datatype] * tensor.shape[0] * tensor.shape[1]
    assert {spec.name for spec in contract.inputs if not spec.optional} <= {tensor.name for tensor in went.inputs}
    assert {output.name for output in went.outputs} <= {spec.name for spec in contract.outputs}


def test_an_error_looks_like_one_of_the_models() -> None:
    response = service_pb2.ModelStreamInferResponse.FromString(error_bytes(BISTREAM, "r", InvalidInputError("Wrong.", "s")))
    assert response.error_message == "INVALID_INPUT: Wrong. [session s]" and response.infer_response.id == "r"
    assert not is_final(response)
    assert is_final(service_pb2.ModelStreamInferResponse(error_message="of Triton itself"))
