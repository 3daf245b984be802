"""Callers of a running server who all say the same, for ``first_audio.py``. Needs what the client needs."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks._client_processes import ProcessLoad, Task, run_processes
from bistream.client.audio import read_reference
from bistream.client.client import BistreamClient, ClientSession
from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.report import ChunkRecord, SessionReport
from bistream.client.say import feed, paced, split_pieces
from bistream.contract.audio import REFERENCE_SAMPLE_RATE, UPSTREAM_SAMPLE_RATE
from bistream.errors import BistreamError
from bistream.types import FloatArray

LENGTH_SPREAD = 0.2  # of fresh recordings, both ways


@dataclass(frozen=True)
class Speech:
    """What every caller says, and with which voice. text_rate: words per second; None: the whole text at once. fresh_seed: each session
    sends a recording that nobody has sent before, the given one with noise of its own; another seed gives other recordings. fresh_s: about
    as long, see ``fresh_voice``. sample_rate: of the server's speech."""

    server: str
    text: str
    text_rate: float | None = None
    speaker_id: str | None = None
    reference_audio: str | None = None
    reference_text: str | None = None
    fresh_seed: int | None = None
    fresh_s: float | None = None
    sample_rate: int = UPSTREAM_SAMPLE_RATE
    security: ClientSecurity = field(default=INSECURE, repr=False)


@dataclass(frozen=True)
class Caller:
    """Sessions one after another, the first ``begin_s`` after the beginning of the load: ``requests`` of them, and more as long as they
    begin before ``until_s``. number: tells the fresh recordings of one caller from those of others."""

    begin_s: float = 0.0
    requests: int = 1
    until_s: float = 0.0
    number: int = 0


@dataclass(frozen=True)
class Load:
    """The outcome of a load."""

    reports: list[SessionReport]
    process: ProcessLoad


def run_session(start: Callable[[], ClientSession], pieces: Sequence[str], speech: Speech) -> SessionReport:
    """One session from its start to its last chunk. pieces: of the text; unused where the start brings the whole text."""
    report = SessionReport(session_id="", chunks=[], sample_rate=speech.sample_rate)
    began = time.monotonic()
    try:
        listen(report, start, pieces, speech.text_rate, began)
    except BistreamError as error:
        report.error = f"{error.code}: {error}"
    except (ConnectionError, TimeoutError) as error:
        report.error = str(error)
    report.wall_s = time.monotonic() - began
    return report


def listen(
    report: SessionReport,
    start: Callable[[], ClientSession],
    pieces: Sequence[str],
    text_rate: float | None,
    began: float,
    on_audio: Callable[[FloatArray], object] = lambda waveform: None,
) -> None:
    """Fill the report, with times since ``began``, while the session runs. Raises the session's error.

    text_rate: pieces per second; ``None``: the start brings the whole text.
    """
    with start() as session:
        report.session_id = session.session_id
        if text_rate is not None:
            threading.Thread(target=feed, args=(session, paced(pieces, text_rate)), daemon=True).start()
        for chunk in session:
            report.chunks.append(ChunkRecord(chunk.arrived_at - began, chunk.waveform.size / report.sample_rate, chunk.text_consumed))
            on_audio(chunk.waveform)
        if session.text_ended_at is not None:
            report.text_ended_s = session.text_ended_at - began


def failure_of_all(load: Load) -> str | None:
    """The error that all sessions ended with, if none was heard: a server that is gone or refuses everybody is not a result."""
    errors = {one.error or "" for one in load.reports}
    heard = any(one.chunks for one in load.reports)
    return errors.pop() or None if len(errors) == 1 and not heard else None


def poisson_starts(starts_per_s: float, seconds: float, rng: random.Random) -> list[float]:
    """Times of independent starts, at least one."""
    starts = [rng.expovariate(starts_per_s)]
    while starts[-1] < seconds:
        starts.append(starts[-1] + rng.expovariate(starts_per_s))
    return starts[:-1] or starts


def run_loads(loads: Sequence[tuple[Speech, Sequence[Caller]]], processes: int) -> list[Load]:
    """Loads of one server at the same time, each from so many processes. Raises ``RuntimeError`` when a client process fails."""
    plans = [
        (index, speech, share)
        for index, (speech, callers) in enumerate(loads)
        for number in range(processes)
        if (share := tuple(callers[number::processes]))
    ]
    reports: list[list[SessionReport]] = [[] for _ in loads]
    process = run_processes(prepare, plans, lambda result: reports[result[0]].append(result[1]))
    return [Load(ours, process) for ours in reports]


def prepare(plan: tuple[int, Speech, tuple[Caller, ...]]) -> list[Task]:
    """The tasks of a client process; a result is the number of the load and a ``SessionReport``."""
    number_of_load, speech, callers = plan
    voice = _voice(speech)
    client = BistreamClient(speech.server, security=speech.security, sends_hashes=False, keeps_connections=True)
    whole: dict[str, Any] = {"text": speech.text, "is_end": True} if speech.text_rate is None else {}
    pieces = split_pieces(speech.text)

    def call(caller: Caller, began: float) -> Iterator[tuple[int, SessionReport]]:
        for number in itertools.count():
            if number >= caller.requests and time.monotonic() >= began + caller.until_s:
                return
            own = voice if speech.fresh_seed is None else fresh_voice(voice, (speech.fresh_seed, caller.number, number), speech.fresh_s)
            yield number_of_load, run_session(functools.partial(client.start, **own, **whole), pieces, speech)

    return [Task(caller.begin_s, functools.partial(call, caller)) for caller in callers]


def fresh_voice(voice: dict[str, Any], seed: Sequence[int], seconds: float | None = None) -> dict[str, Any]:
    """The same recording to the ear (noise 80 dB below full scale), another one to the server.

    seconds: the recording is repeated to about this length (a fifth less or more, at random); None: its own length.
    """
    wav: FloatArray = voice["reference_wav"]
    generator = np.random.default_rng(seed)
    if seconds is not None:
        wav = np.resize(wav, int(seconds * generator.uniform(1 - LENGTH_SPREAD, 1 + LENGTH_SPREAD) * REFERENCE_SAMPLE_RATE))
    return {**voice, "reference_wav": wav + np.float32(1e-4) * generator.standard_normal(wav.size, np.float32)}


def _voice(speech: Speech) -> dict[str, Any]:
    if speech.speaker_id is not None:
        return {"speaker_id": speech.speaker_id}
    assert speech.reference_audio is not None
    return {"reference_wav": read_reference(speech.reference_audio), "reference_text": speech.reference_text}
