"""Callers whose server fails: each keeps all that it hears, with the time, so that a test can say what a failure cost."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

import tritonclient.grpc as triton

from bistream.contract.refusals import parse_error
from tests.triton.requests import to_input

logger = logging.getLogger(__name__)

MODEL = "cosyvoice2_bistream"
BROKEN = "BROKEN"  # in place of a code: the gRPC stream itself ended


class Caller:
    """One session on a stream of its own, begun by the constructor with part of its text."""

    def __init__(self, grpc_url: str, voice: dict[str, Any], text: str = "The first words are spoken. ", is_end: bool = False) -> None:
        self.session_id = uuid.uuid4().hex
        self.codes: list[str] = []  # of errors, in order
        self.ending = ""  # what ended the session: "audio", the code of its error, or BROKEN; what comes later changes nothing
        self.samples = 0
        self.finals = 0
        self.ended_at = 0.0
        self._closing = False
        self._start_id = uuid.uuid4().hex
        self._ended = threading.Event()
        self._heard = threading.Event()
        self._client = triton.InferenceServerClient(grpc_url)
        self._client.start_stream(callback=self._hear)
        self._send(self._start_id, target_text=text, session_id=self.session_id, is_end=is_end, **voice)

    def say(self, text: str, is_end: bool = True) -> None:
        self._send(uuid.uuid4().hex, target_text=text, session_id=self.session_id, is_start=False, is_end=is_end)

    def _send(self, request_id: str, **values: Any) -> None:
        inputs = [to_input(name, value) for name, value in values.items()]
        self._client.async_stream_infer(MODEL, inputs, request_id=request_id, enable_empty_final_response=True)

    def _hear(self, result: Any, error: Any) -> None:
        if self._closing:
            return
        if error is not None:
            logger.info("session %s: %s %s", self.session_id, error.status(), error.message())
            self.codes.append(parse_error(error.message()).code if error.status() is None else BROKEN)
            self._end(self.codes[-1])
            return
        response = result.get_response()
        waveform = result.as_numpy("waveform")
        if waveform is not None:
            self.samples += waveform.size
            self._heard.set()
        if response.id == self._start_id and response.parameters["triton_final_response"].bool_param:
            self.finals += 1
            self._end("audio")  # unless an error came before, which has a final response as well

    def _end(self, ending: str) -> None:
        if not self._ended.is_set():
            self.ending = ending
            self.ended_at = time.monotonic()
            self._ended.set()
            self._heard.set()  # as far as it will be

    def wait_audio(self, seconds: float = 240.0) -> None:
        assert self._heard.wait(seconds) and self.samples, f"no audio came: {self.outcome}"

    def wait_end(self, seconds: float) -> bool:
        """Whether the session has ended: with its final response, an error, or the end of the stream. Waits on while audio comes."""
        heard = -1
        while heard != self.samples and not self._ended.is_set():
            heard = self.samples
            self._ended.wait(seconds)
        return self._ended.is_set()

    @property
    def outcome(self) -> str:
        """``audio``, the codes of all errors, or ``nothing``."""
        if self.codes:
            return " ".join(self.codes)
        return "audio" if self.finals else "nothing"

    def close(self) -> None:
        self._closing = True
        self._client.stop_stream(cancel_requests=True)
        self._client.close()
