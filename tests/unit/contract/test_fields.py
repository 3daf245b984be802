"""A field of a request is one row of the table: each that a client can set arrives, through every hop, where the table says it goes."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from bistream.client.exchange import SessionExchange
from bistream.client.messages import RequestMessages
from bistream.client.opening import START_ARGUMENTS, SessionStarts
from bistream.client.say import parse_arguments, start_session
from bistream.contract.codec import CallInputs, Values, flat_values, input_values, to_array, to_value
from bistream.contract.field import Field
from bistream.contract.fields import CONTRACTS, COSYVOICE2_BISTREAM, LLM_BISTREAM
from bistream.sessions.ports import BistreamRequest
from bistream.text2token.one_table.prompts import Labels
from bistream.text2token.service import LanguageModelStart
from bistream.transport.channel import CallChannel
from bistream.transport.sibling_ports import SiblingLanguageModel
from bistream.triton.inputs import TritonInputs, bistream_request
from bistream.types import GenerationOptions
from gateway.messages import read_request, request_bytes
from gateway.settings import GateLimits
from tests.unit.sessions.fakes import start_request
from tests.unit.sessions.house import House
from tests.unit.triton.fakes import FakeRequest

FIELDS = COSYVOICE2_BISTREAM.by_name
# Of a session and of the calls between models, not of what is to be spoken.
CONTROLS = {"session_id", "is_start", "is_end", "is_cancel", "is_pull", "wanted_tokens", "slack_s", "is_voice_list"}
# Of a voice that is to be made: the language model has no session yet.
LABELS = {field.name for field in dataclasses.fields(Labels)}
VALUES: dict[str, Any] = {
    "reference_wav": np.linspace(-0.5, 0.5, 16000, dtype=np.float32),
    "reference_hash": "0" * 64,
    "text_normalization": "en",
    "text_type": "ssml",
    "lexicon": '{"Nguyen": "win"}',
    "gender": "female",
    "pitch": "high",
    "speaking_rate": "very_low",
    "BYTES": "something",
    "BOOL": True,
    "INT32": 7,
    "INT64": 2**40,
    "FP32": 0.5,
}


def value_of(field: Field) -> Any:
    return VALUES.get(field.name, VALUES[field.datatype])


class Starts(SessionStarts[dict[str, Any]]):
    known_voices = None

    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> dict[str, Any]:
        request = exchange.start(start)
        through_the_gate = read_request(
            service_pb2.ModelInferRequest.FromString(RequestMessages(COSYVOICE2_BISTREAM.name).encoded(request)), GateLimits()
        )
        return arrays_of(request_bytes(through_the_gate, "1", through_the_gate.tensors))


def arrays_of(data: bytes) -> dict[str, Any]:
    """As Triton gives them to the model."""
    message = service_pb2.ModelInferRequest.FromString(data)
    arrays = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        value = raw[4:] if tensor.datatype == "BYTES" else np.frombuffer(raw, FIELD_TYPES[tensor.datatype]).reshape(tensor.shape)
        arrays[tensor.name] = to_array(FIELDS[tensor.name], value)
    return arrays


FIELD_TYPES = {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}


def received(**inputs: Any) -> BistreamRequest:
    """What the front model makes of a start by the client, through the gate."""
    return bistream_request(TritonInputs(FakeRequest(**Starts().start(text="Hi.", is_end=True, **inputs)), COSYVOICE2_BISTREAM))


@pytest.mark.parametrize("name", sorted(START_ARGUMENTS))
def test_what_a_client_asks_for_reaches_the_front_model(name: str) -> None:
    value = value_of(FIELDS[name])
    found = flat_values(received(**{name: value}))[name]
    assert np.array_equal(found, value)


def test_a_client_cannot_ask_for_what_there_is_not() -> None:
    with pytest.raises(TypeError, match="volume"):
        Starts().start(text="Hi.", volume=3)


def test_a_client_asks_for_all_that_belongs_to_a_start() -> None:
    recordings = {"target_text", "reference_wav_len", "reference_hash", "source_wav", "source_wav_len"}  # the client fills them in itself
    assert set(FIELDS) - CONTROLS - recordings == START_ARGUMENTS


OPTIONS = [field for field in dataclasses.fields(GenerationOptions)]


def test_what_the_language_model_is_told_is_one_object() -> None:
    shared = {field.name for field in COSYVOICE2_BISTREAM.inputs if LLM_BISTREAM.name in field.models} - CONTROLS - LABELS
    assert shared == {option.name for option in OPTIONS}


class Asked:
    def __init__(self) -> None:
        self.values: Values = {}

    async def ask(self, values: Values) -> Values:
        self.values = values
        return {}


@pytest.fixture(scope="module")
def language_model_starts() -> list[LanguageModelStart]:
    """Of a session with all options, in the front model's language model port."""
    house = House()
    options = GenerationOptions(**{option.name: value_of(FIELDS[option.name]) for option in OPTIONS})
    house.send(start_request(options=options)).wait()
    house.orchestrator.close()
    return house.models.language_model.starts


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_an_option_reaches_the_language_model(name: str, language_model_starts: list[LanguageModelStart]) -> None:
    (start,) = language_model_starts
    channel = Asked()
    asyncio.run(SiblingLanguageModel(cast(CallChannel, channel)).start(start))
    read = CallInputs(channel.values, LLM_BISTREAM).read(LanguageModelStart)
    # A session that the orchestrator has never had is told as the session's own id (``earlier_speech.py``).
    expected = start.session_id if name == "continues" else value_of(FIELDS[name])
    assert getattr(start.options, name) == getattr(read.options, name) == expected


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_an_option_can_be_given_on_the_command_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr("bistream.client.say.BistreamClient.start", lambda self, **values: started.update(values))
    value = value_of(FIELDS[name])
    start_session(parse_arguments(["Hi.", "--speaker-id", "anna", f"--{name.replace('_', '-')}", str(value)]), None)
    assert started[name] == value


@pytest.mark.parametrize(
    ("request_class", "contract", "others"),
    [
        (BistreamRequest(), COSYVOICE2_BISTREAM, {"is_offline", "session_secret"}),
        (LanguageModelStart("s", b"", True, "", np.zeros(0, np.int32)), LLM_BISTREAM, set()),
    ],
)
def test_requests_have_the_fields_and_defaults_of_the_table(request_class: Any, contract: Any, others: set[str]) -> None:
    values = flat_values(request_class)
    fields = contract.by_name
    assert set(values) - others <= set(fields) <= set(values) | CONTROLS | LABELS
    for name in set(values) - others - {"session_id"}:
        assert np.array_equal(fields[name].default, values[name]), name


def test_contracts_name_each_tensor_once_and_say_what_it_is() -> None:
    for contract in CONTRACTS:
        names = [field.name for field in (*contract.inputs, *contract.outputs)]
        assert len(names) == len(set(names)), contract.name
        assert all(field.doc for field in (*contract.inputs, *contract.outputs))


@given(st.data())
def test_a_value_survives_its_array(data: st.DataObject) -> None:
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "BYTES": st.text(),
        "BOOL": st.booleans(),
        "INT32": st.integers(-(2**31), 2**31 - 1),
        "INT64": st.integers(-(2**63), 2**63 - 1),
        "FP32": st.floats(width=32, allow_nan=False),
    }
    field = data.draw(
        st.sampled_from([field for contract in CONTRACTS for field in contract.inputs if field.check is None and field.datatype in kinds])
    )
    value: Any = data.draw(kinds[field.datatype] if field.dims == (1, 1) else st.lists(kinds[field.datatype], max_size=5))
    if isinstance(value, list):
        value = np.array(value, np.float32 if field.datatype == "FP32" else np.int32).reshape((1, -1) if len(field.dims) == 2 else -1)
    found = to_value(field, to_array(field, value))
    if isinstance(value, str) and not field.is_text:
        value = value.encode()
    said = field.datatype == "BOOL" or field.says(value)
    assert np.array_equal(np.ravel(found), np.ravel(value if said else field.default))


def test_what_says_nothing_is_not_sent() -> None:
    start = LanguageModelStart("s", b"", False, "", np.zeros(0, np.int32))
    sent = input_values(LLM_BISTREAM, flat_values(start))
    assert set(sent) == {"session_id", "is_end", "seed", "temperature"}
