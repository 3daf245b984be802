"""One id through client, front model and server: in headers, session ids, metadata, and the logs."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.checks import check_session_id
from interfaces.core.trace import Trace, trace_of
from tests.unit.client.fake_server import Reader
from tests.unit.interfaces.rig import ReadyServer, running

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def test_the_clients_own_id_goes_before_the_trace_and_bad_ones_are_replaced() -> None:
    assert trace_of({"x-request-id": "a-1.b:c"}) == Trace("a-1.b:c")
    assert trace_of({"traceparent": PARENT}) == Trace(TRACE_ID, PARENT)
    assert trace_of({"traceparent": PARENT, "x-request-id": "mine"}) == Trace("mine", PARENT)
    for bad in ("", "x" * 97, "a b", "a\nb", "ü"):
        assert re.fullmatch("req_[0-9a-f]{32}", trace_of({"x-request-id": bad}).request_id)
    for bad in (PARENT.upper(), f"ff{PARENT[2:]}", f"00-{'0' * 32}-00f067aa0ba902b7-01", PARENT + "\nx", PARENT[:-1], "00"):
        assert trace_of({"traceparent": bad}).traceparent is None


@given(st.text(), st.text())
def test_whatever_comes_the_ids_can_be_sent_on(request_id: str, parent: str) -> None:
    trace = trace_of({"x-request-id": request_id, "traceparent": parent})
    check_session_id(trace.session_id())
    assert trace.session_id() != trace.session_id()
    assert all("\n" not in value and value.isascii() for value in trace.metadata().values())


class Listening(ReadyServer):
    """Keeps the metadata of streams."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, Any]] = []
        super().__init__(Reader())

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Any:
        self.metadata.append(dict(context.invocation_metadata()))
        return super().ModelStreamInfer(request_iterator, context)


def test_the_server_gets_the_id_and_the_traceparent_and_the_log_has_both(caplog: pytest.LogCaptureFixture) -> None:
    server = Listening()
    try:
        with caplog.at_level(logging.INFO, "interfaces.utterances"), running(server.address) as front:
            body = json.dumps({"model": "tts-1", "voice": "anna", "input": "A secret sentence.", "response_format": "pcm"}).encode()
            request = urllib.request.Request(f"{front.http}/v1/audio/speech", body, {"traceparent": PARENT, "x-request-id": "call-7"})
            with urllib.request.urlopen(request, timeout=240) as answer:
                assert answer.headers["x-request-id"] == "call-7" and answer.read()
        (metadata,) = server.metadata
        session_id = server.received[0].inputs["session_id"].decode()
        assert metadata["traceparent"] == PARENT and session_id.startswith("call-7.")
        (record,) = [one for one in caplog.records if one.name == "interfaces.utterances"]
        line = json.loads(record.getMessage())
        assert (line["id"], line["traceparent"], line["sessions"], line["reason"]) == ("call-7", PARENT, [session_id], "eos")
        assert line["characters"] == 18 and line["audio_s"] == pytest.approx(0.36) and line["first_audio_s"] >= 0
        assert "secret" not in record.getMessage()
    finally:
        server.stop()
