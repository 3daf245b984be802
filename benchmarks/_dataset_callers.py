"""Callers of ``dataset.py``: tasks that speak rows of a data set one after another, in one of three modes.

- ``streaming``: ``cosyvoice2`` over a gRPC stream, the whole text in one request (upstream's benchmark with decoupled True);
- ``offline``: ``cosyvoice2`` in one call, the whole waveform in one answer (decoupled False);
- ``bistream``: a session with ``cosyvoice2_bistream``, the text in pieces as a language model would write it.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from benchmarks._callers import listen
from benchmarks._client_processes import Task
from benchmarks._preflight import failure
from bistream.client.audio import WavWriter, read_reference
from bistream.client.client import BistreamClient
from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.report import ChunkRecord, SessionReport
from bistream.client.say import split_pieces
from bistream.client.translation import infer_input, stream_error
from bistream.contract.audio import UPSTREAM_SAMPLE_RATE
from bistream.contract.fields import COSYVOICE2, COSYVOICE2_BISTREAM
from bistream.errors import BistreamError
from bistream.evaluation.dataset import Row
from bistream.types import FloatArray

MODES = ("streaming", "offline", "bistream")
MODELS = {"streaming": COSYVOICE2, "offline": COSYVOICE2, "bistream": COSYVOICE2_BISTREAM}
TIMEOUT_S = 300.0  # without an answer
T = TypeVar("T")


@dataclass(frozen=True)
class Manner:
    """How all rows of a load are spoken. text_rate: words per second of ``bistream``. default_voice: without the recording, in the voice
    that the server has for such requests (upstream's ``--use-spk2info-cache``). speaker_id: a registered voice, for ``bistream``.
    wavs: the folder for WAV files. sample_rate: of the server's speech."""

    server: str
    mode: str
    text_rate: float = 10.0
    default_voice: bool = False
    speaker_id: str | None = None
    wavs: Path | None = None
    sample_rate: int = UPSTREAM_SAMPLE_RATE
    security: ClientSecurity = field(default=INSECURE, repr=False)


def shares_of(rows: Sequence[T], tasks: int) -> list[Sequence[T]]:
    """Consecutive rows for each task, the first ones one more where the rows do not divide evenly (as upstream); no empty share."""
    tasks = min(tasks, len(rows))
    ends = [number * (len(rows) // tasks) + min(number, len(rows) % tasks) for number in range(tasks + 1)]
    return [rows[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


def prepare(plan: tuple[Manner, Sequence[Sequence[Row]]]) -> list[Task]:
    manner, shares = plan
    return [Task(0.0, lambda began, rows=rows: speak(manner, rows)) for rows in shares]  # type: ignore[misc]


def speak(manner: Manner, rows: Sequence[Row]) -> Iterator[tuple[SessionReport, bool]]:
    """The report of each row, and whether the server was lost, so that it says nothing about the row: then it is the last one."""
    speaker = Speaker(manner)
    try:
        for row in rows:
            yield (spoken := speaker.speak(row))
            if spoken[1]:
                return
    finally:
        speaker.close()


class Speaker:
    """Speaks rows one after another; the requests to ``cosyvoice2`` go over one connection. ``close`` it."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._connection = triton.InferenceServerClient(manner.server, **manner.security.grpc_options())
        self._bistream = BistreamClient(manner.server, silence_timeout_s=TIMEOUT_S, security=manner.security)

    def close(self) -> None:
        self._connection.close()

    def speak(self, row: Row) -> tuple[SessionReport, bool]:
        """The report, and whether the server was lost."""
        report, waveforms, is_lost = SessionReport(row.id, [], sample_rate=self._manner.sample_rate), list[FloatArray](), False
        began = time.monotonic()
        try:
            voice = self._voice(row)
            began = time.monotonic()
            if self._manner.mode == "bistream":
                pieces = split_pieces(row.target_text)
                listen(report, lambda: self._bistream.start(**voice), pieces, self._manner.text_rate, began, waveforms.append)
            else:
                for waveform in self._ask({**voice, "target_text": row.target_text}):
                    report.chunks.append(ChunkRecord(time.monotonic() - began, waveform.size / report.sample_rate, 0))
                    waveforms.append(waveform)
        except BistreamError as error:
            report.error = f"{error.code}: {error}"
        except ValueError as error:  # of the recording
            report.error = str(error)
        except (ConnectionError, TimeoutError) as error:
            report.error, is_lost = str(error), True
        report.session_id, report.wall_s = row.id, time.monotonic() - began
        if self._manner.wavs is not None and waveforms:
            with WavWriter(self._manner.wavs / f"{row.id}.wav") as wav:
                wav.sample_rate = report.sample_rate
                wav.write(np.concatenate(waveforms))
        return report, is_lost

    def _voice(self, row: Row) -> dict[str, Any]:
        """Raises ``ValueError`` for a recording that cannot be read."""
        if self._manner.speaker_id is not None:
            return {"speaker_id": self._manner.speaker_id}
        if self._manner.default_voice:
            return {}
        recording = read_reference(row.prompt_audio)
        values: dict[str, Any] = {"reference_wav": recording, "reference_text": row.prompt_text}
        return values if self._manner.mode == "bistream" else {**values, "reference_wav_len": recording.size}

    def _ask(self, values: dict[str, Any]) -> Iterator[FloatArray]:
        """The waveforms of a request to ``cosyvoice2`` as they come."""
        inputs = [infer_input(name, value) for name, value in values.items()]
        return self._whole(inputs) if self._manner.mode == "offline" else self._stream(inputs)

    def _whole(self, inputs: list[triton.InferInput]) -> Iterator[FloatArray]:
        security, server = self._manner.security, self._manner.server
        try:
            answer = self._connection.infer(COSYVOICE2.name, inputs, client_timeout=TIMEOUT_S, headers=security.headers())
        except InferenceServerException as error:
            raise failure(error, server) from None
        yield answer.as_numpy("waveform").reshape(-1)

    def _stream(self, inputs: list[triton.InferInput]) -> Iterator[FloatArray]:
        """One gRPC stream for each request, as upstream's benchmark."""
        server = self._manner.server
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._connection.start_stream(callback=lambda result, error: answers.put(error or result), headers=self._manner.security.headers())
        is_over = False
        try:
            try:
                request_id = uuid.uuid4().hex
                self._connection.async_stream_infer(COSYVOICE2.name, inputs, request_id=request_id, enable_empty_final_response=True)
            except InferenceServerException as error:
                raise stream_error(error, server) from None
            while not is_over:
                try:
                    answer = answers.get(timeout=TIMEOUT_S)
                except queue.Empty:
                    raise TimeoutError(f"No response from {server} for {TIMEOUT_S:g} s.") from None
                if isinstance(answer, InferenceServerException):
                    raise stream_error(answer, server)
                waveform = answer.as_numpy("waveform")
                if waveform is not None and waveform.size:
                    yield waveform.reshape(-1)
                is_over = answer.get_response().parameters["triton_final_response"].bool_param
        finally:
            self._connection.stop_stream(cancel_requests=not is_over)
