"""Common to all models: ``execute`` never raises, every request is answered, a model that cannot work refuses to load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs, Values, text_array
from bistream.contract.fields import COSYVOICE2, LLM_BISTREAM, SPEAKER_EMBEDDING
from bistream.errors import CheckpointError, EngineError, InvalidInputError
from bistream.sessions.ports import AudioSender
from bistream.transport.sender import Answerer, ResponseSender
from bistream.triton import model as model_module
from bistream.triton.model import BatchedModel, DecoupledModel, SiblingModel
from bistream.triton.startup import check_numpy, refusing_to_load
from bistream.triton.upstream_model import UpstreamModel
from tests.unit.triton.fakes import FakePbUtils, FakeRequest

FAILURES = [InvalidInputError("Send something else."), ZeroDivisionError("/srv/secret.py"), MemoryError()]


@pytest.fixture(autouse=True)
def _leave_the_test_process_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(model_module, "prepare_process", lambda config, name: None)
    monkeypatch.setattr(model_module, "end_when_useless", lambda healthy: None)
    monkeypatch.setattr(model_module, "settle_memory", lambda: None)
    monkeypatch.setattr("gc.collect", lambda: 0)  # of all that other tests left, 0.7 s
    with tempfile.TemporaryDirectory() as directory:  # pytest's is too long for a socket's path
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield


class Streaming(DecoupledModel):
    backend = FakePbUtils()
    contract = COSYVOICE2
    failure: Exception | None = None
    load_failure: Exception | None = None
    closed = 0

    def open(self, config: RuntimeConfig) -> None:
        if self.load_failure:
            raise self.load_failure

    def handle(self, inputs: Inputs, sender: ResponseSender) -> None:
        if self.failure:
            raise self.failure
        sender.finish()

    def close(self) -> None:
        self.closed += 1


class Sibling(SiblingModel):
    """answers: by session id, how its request is answered, on whatever thread sends."""

    backend = FakePbUtils()
    contract = LLM_BISTREAM
    answers: dict[str, Callable[[Answerer], None]]

    def open(self, config: RuntimeConfig) -> None:
        pass

    def handle(self, inputs: Inputs, sender: Answerer) -> None:
        self.post_answer(sender, partial(self.answers[inputs.value("session_id") or ""], sender))

    def close(self) -> None:
        self.outbox.shutdown()


class Upstream(UpstreamModel):
    """Its requests cannot be handed over."""

    backend = FakePbUtils()
    contract = COSYVOICE2
    failure: Exception

    def open(self, config: RuntimeConfig) -> None:
        self._outbox = None  # type: ignore[assignment]  # for answers, of which there are none
        self._hand_over: Any = SimpleNamespace(handle=self._fail)

    def _fail(self, values: Values, sender: AudioSender) -> None:
        raise self.failure

    def close(self) -> None:
        pass


def arguments(decoupled: bool = True, **parameters: str) -> dict[str, str]:
    values = {key: {"string_value": value} for key, value in {"model_dir": "/m", **parameters}.items()}
    return {"model_config": json.dumps({"parameters": values, "model_transaction_policy": {"decoupled": decoupled}})}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_decoupled_request_that_fails_is_answered_once(failure: Exception) -> None:
    model = Streaming()
    model.initialize(arguments())
    model.failure = failure
    requests = [FakeRequest(), FakeRequest()]
    model.execute(requests)
    for request in requests:
        assert request.sender.finals == 1 and len(request.sender.errors) == 1
        assert "secret" not in request.sender.errors[0]


def test_an_answer_that_cannot_be_made_is_an_error_and_the_next_one_goes_out() -> None:
    def fail(sender: Answerer) -> None:
        raise ZeroDivisionError("/srv/secret.py")

    model = Sibling()
    Sibling.answers = {"bad": fail, "good": lambda sender: sender.finish()}
    model.initialize(arguments())
    bad, good = (FakeRequest(session_id=text_array(name)) for name in ("bad", "good"))
    model.execute([bad, good])
    model.finalize()
    assert len(bad.sender.errors) == 1 and bad.sender.errors[0].startswith("ENGINE_ERROR: ") and "secret" not in bad.sender.errors[0]
    assert bad.sender.finals == good.sender.finals == 1 and not good.sender.errors


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("decoupled", [True, False])
def test_a_request_that_cannot_be_handed_over_is_answered_once(decoupled: bool, failure: Exception) -> None:
    model = Upstream()
    model.initialize(arguments(decoupled))
    model.failure = failure
    requests = [FakeRequest(target_text=text_array("Hello.")), FakeRequest(target_text=text_array("Hello."))]
    responses = model.execute(requests)
    assert (responses is None) is decoupled
    errors = [error for request in requests for error in request.sender.errors]
    errors += [response.error().message() for response in responses or ()]
    assert len(errors) == 2 and not any("secret" in error for error in errors)
    assert [request.sender.finals for request in requests] == [decoupled, decoupled]


def test_a_missing_required_input_is_named() -> None:
    model = Upstream()
    model.initialize(arguments(decoupled=False))
    responses = model.execute([FakeRequest()])
    assert responses is not None and len(responses) == 1
    assert responses[0].error().message().startswith("INVALID_INPUT: Input target_text is missing")


def test_requests_after_finalize_are_refused() -> None:
    model = Streaming()
    model.initialize(arguments())
    model.finalize()
    request = FakeRequest()
    model.execute([request])
    assert request.sender.errors[0].startswith("SHUTTING_DOWN: ") and request.sender.finals == 1
    assert model.closed == 1


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (CheckpointError("hift.pt is missing."), "CHECKPOINT_ERROR: hift.pt is missing."),
        (OSError("disk\nfull"), "The model could not be loaded (OSError: disk full)."),
    ],
)
def test_a_model_that_cannot_load_gives_the_reason_in_one_sentence(failure: Exception, sentence: str) -> None:
    model = Streaming()
    model.load_failure = failure
    with pytest.raises(FakePbUtils.TritonModelException) as refusal:
        model.initialize(arguments())
    assert str(refusal.value) == sentence
    model.finalize()
    assert model.closed == 0  # nothing was opened


@pytest.mark.parametrize("version", ["2.0.2", "2.4.6", "3.0.0"])
def test_numpy_2_refuses_to_load(version: str) -> None:
    with pytest.raises(FakePbUtils.TritonModelException, match="numpy"), refusing_to_load(FakePbUtils()):
        check_numpy(version)


EMBEDDING = "prompt_spk_embedding"


class Batched(BatchedModel):
    """Doubles numbers; a negative one fails all with it, zero cannot be read."""

    backend = FakePbUtils()
    contract = SPEAKER_EMBEDDING

    def open(self, config: RuntimeConfig) -> None:
        self.batches: list[int] = []

    def read(self, inputs: Inputs) -> float:
        number = float(inputs.value("reference_wav")[0])
        if number == 0:
            raise InvalidInputError("Send something else.")
        return number

    def answers(self, items: Sequence[float]) -> list[Values]:
        self.batches.append(len(items))
        if min(items) < 0:
            raise EngineError("It failed.")
        return [{EMBEDDING: np.array([2 * item], np.float32)} for item in items]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("numbers", "answers", "batches"),
    [
        ([1, 0, 3], [2.0, "INVALID_INPUT: Send something else.", 6.0], [2]),
        ([1, -2, 3], [2.0, "ENGINE_ERROR: It failed.", 6.0], [3, 1, 1, 1]),
    ],
)
def test_every_request_of_a_batch_gets_its_own_answer(numbers: list[float], answers: list[float | str], batches: list[int]) -> None:
    model = Batched()
    model.initialize(arguments(decoupled=False))
    requests = [FakeRequest(reference_wav=np.full((1, 5), number, np.float32)) for number in numbers]
    responses = model.execute(requests)
    found = [response.error().message() if response.has_error() else float(response.arrays()[EMBEDDING][0]) for response in responses]
    assert found == answers and model.batches == batches
    model.finalize()
    assert [response.error().message()[:13] for response in model.execute(requests)] == ["SHUTTING_DOWN"] * len(numbers)
