"""A lost server behind a proxy is one sentence that says what to do; the details are words of Envoy 1.40 as grpcio 1.85 has them."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from bistream.client.translation import stream_error
from bistream.errors import EngineError

LOST = "The server that spoke this session was lost behind proxy:8001; start the session again."
WORDS = [
    ("StatusCode.INTERNAL", "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))", LOST),
    ("StatusCode.UNAVAILABLE", "upstream connect error or disconnect/reset before headers. reset reason: connection termination", LOST),
    (
        "StatusCode.UNAVAILABLE",
        "no healthy upstream",
        "No server behind proxy:8001 takes sessions at the moment; try again in a few seconds.",
    ),
    (
        "StatusCode.UNAVAILABLE",
        "upstream request timeout",
        "The proxy at proxy:8001 has ended the session after its own time limit; switch off its route time-out (deploy/envoy).",
    ),
]


@pytest.mark.parametrize(("status", "details", "sentence"), WORDS)
def test_the_words_of_a_proxy_become_one_sentence(status: str, details: str, sentence: str) -> None:
    error = stream_error(InferenceServerException(details, status), "proxy:8001")
    assert type(error) is ConnectionError and str(error) == sentence


def test_a_server_that_cannot_be_reached_is_said_to_be_so() -> None:
    error = stream_error(InferenceServerException("failed to connect to all addresses", "StatusCode.UNAVAILABLE"), "proxy:8001")
    assert type(error) is ConnectionError and str(error).startswith("No server answers at proxy:8001 (failed to connect ")


def test_a_host_without_an_address_is_one_short_sentence() -> None:
    words = "errors resolving proxy:8001: [field:hostname lookup error:address lookup failed for proxy:8001: Domain name not found]"
    for details in (words, "DNS resolution failed for proxy:8001: C-ares status is not ARES_SUCCESS qtype=A name=proxy"):
        error = stream_error(InferenceServerException(details, "StatusCode.UNAVAILABLE"), "proxy:8001")
        assert str(error) == "The host of proxy:8001 is not known here; check the address."


def test_answers_of_our_proxy_keep_their_code() -> None:
    error = stream_error(InferenceServerException("ENGINE_ERROR: Lost; start again.", "StatusCode.UNAVAILABLE"), "proxy:8001")
    assert type(error) is EngineError and error.retryable
