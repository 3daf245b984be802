"""Every message of the server becomes an error with a code that says what to do, also Triton's own, which have none; and every end of a
stream one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from bistream.client.server_errors import server_error
from bistream.client.translation import stream_error
from bistream.contract.refusals import format_error
from bistream.errors import ERRORS_BY_CODE, BistreamError, EngineError, ShuttingDownError, UnauthenticatedError

# As this build of Triton words them.
TRITON = [
    ("Request for unknown model: 'nomodel' is not found", "NOT_SERVED"),
    ("Request for unknown model: 'dec' has no available versions", "SHUTTING_DOWN"),
    ("[request id: a] inference input 'AUDIO' data-type is 'INT32', but model 'two' expects 'FP32'", "INVALID_INPUT"),
    ("unexpected shape for input 'AUDIO' for model 'two'. Expected [-1], got [1,3]. ", "INVALID_INPUT"),
    ("unexpected inference input 'ZZ' for model 'two'", "INVALID_INPUT"),
    ("unexpected inference output 'NO' for model 'two'", "INVALID_INPUT"),
    ("incomplete string data for inference input 'TEXT', expecting string of length 9 but only 3 bytes available", "INVALID_INPUT"),
    ("All input dimensions should be specified for input 'X' for model 'm', got [-1]", "INVALID_INPUT"),
    ("expected 1 inputs but got 0 inputs for model 'two'. Got input(s) [], but missing required input(s) ['X'].", "INVALID_INPUT"),
    ("expected number of inputs between 1 and 2 but got 0 inputs for model 'two'.", "INVALID_INPUT"),
    ("input 'reference_wav' has no shape but model requires batch dimension for 'audio_tokenizer'", "INVALID_INPUT"),
    ("input 'reference_wav' batch size does not match other inputs for 'audio_tokenizer'", "INVALID_INPUT"),
    ("ModelInfer RPC doesn't support models with decoupled transaction policy", "WRONG_CALL"),
    ("HTTP end point doesn't support models with decoupled transaction policy", "WRONG_CALL"),
    ("[request id: r3] Exceeds maximum queue size", "BUSY"),
    ("Stub process 'llm_bistream_0_0' is not healthy.", "ENGINE_ERROR"),
    ("The server answered with status 400.", "ENGINE_ERROR"),
]


@pytest.mark.parametrize(("message", "code"), TRITON)
def test_words_of_triton_get_a_code_and_are_kept(message: str, code: str) -> None:
    error = server_error(message)
    assert error.code == code
    assert " ".join(message.split()) in error.sentence


@pytest.mark.parametrize("kind", ERRORS_BY_CODE.values())
def test_our_own_errors_stay_as_they_are(kind: type[BistreamError]) -> None:
    read = server_error(format_error(kind("Do this.", "s")))
    assert (type(read), read.sentence, read.session_id) == (kind, "Do this.", "s")


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "NOT_SERVED", "WRONG_CALL"])
def test_codes_of_the_gate_are_known(code: str) -> None:
    error = server_error(f"{code}: Do this.")
    assert (error.code, error.sentence) == (code, "Do this.")
    assert error.renewed("s").code == code


@given(st.text())
def test_no_message_is_left_without_a_code(message: str) -> None:
    error = server_error(message)
    assert error.code != BistreamError.code
    if type(error) is EngineError:
        assert error.retryable


LOST = "The server that spoke this session was lost behind proxy:8001; start the session again."
UNKNOWN_HOST = "The host of proxy:8001 is not known here; check the address."
# Details of a status in the words of Envoy 1.40 and grpcio 1.85.
ENDS = [
    ("Stream removed (RST_STREAM (Received RST_STREAM with error code 2))", LOST),
    ("upstream connect error or disconnect/reset before headers. reset reason: connection termination", LOST),
    ("no healthy upstream", "No server behind proxy:8001 takes sessions at the moment; try again in a few seconds."),
    (
        "upstream request timeout",
        "The proxy at proxy:8001 has ended the session after its own time limit; switch off its route time-out (docs/deployment.md).",
    ),
    (
        "errors resolving proxy:8001: [field:hostname lookup error:address lookup failed for proxy:8001: Domain name not found]",
        UNKNOWN_HOST,
    ),
    ("DNS resolution failed for proxy:8001: C-ares status is not ARES_SUCCESS qtype=A name=proxy", UNKNOWN_HOST),
    (
        "failed to connect to all addresses",
        "No server answers at proxy:8001 (failed to connect to all addresses); start it, or check the address and whether it wants TLS.",
    ),
]


@pytest.mark.parametrize(("details", "sentence"), ENDS)
def test_the_end_of_a_stream_is_one_sentence(details: str, sentence: str) -> None:
    error = stream_error(InferenceServerException(details, "StatusCode.UNAVAILABLE"), "proxy:8001")
    assert type(error) is ConnectionError and str(error) == sentence


@pytest.mark.parametrize("kind", [ShuttingDownError, UnauthenticatedError, EngineError])
def test_a_stream_that_was_ended_with_a_code_raises_it(kind: type[BistreamError]) -> None:
    """By the server, or by our proxy."""
    error = stream_error(InferenceServerException(f"{kind.code}: Lost; start again.", "StatusCode.UNAVAILABLE"), "proxy:8001")
    assert type(error) is kind
