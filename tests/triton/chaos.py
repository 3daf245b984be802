"""Clients that behave badly, many at a time, and what must still hold.

``storm`` runs them for a while against a server: sessions whole and in pieces, cancelled, dropped, killed, invalid, two with one id,
more than the server admits, text that races with its end. Every request must have its final response in time, with the same audio as the
same request before or with an error of the protocol. Called by ``test_chaos.py``.
"""

from __future__ import annotations

import queue
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from bistream.contract.refusals import parse_error
from bistream.errors import ERRORS_BY_CODE
from tests.triton.requests import end_stream, to_input

ROOT = Path(__file__).resolve().parents[2]
MODEL = "cosyvoice2_bistream"
DEADLINE_S = 90.0
AUDIO_TOLERANCE = 0.02
EXPECTED_CODES = {"BUSY", "CANCELLED", "UNKNOWN_SESSION", "SESSION_EXISTS", "INVALID_INPUT", "UNKNOWN_SPEAKER"}
TEXTS = ("Good morning.", "Streets and trees, one after the other, all the way. 再见。", "No! " * 12)
LONG_TEXT = ("Streets and trees, one after the other, all the way. " * 8)[:400]
# Invalid in each: the voice, a position in the text, a number, the encoding.
BAD_VALUES: tuple[dict[str, Any], ...] = (
    {"target_text": ""},
    {"target_text": b"\xe5\x86"},
    {"target_text": "Fast.", "speed": 9.0},
    {"target_text": "Hot.", "temperature": -1.0},
    {"target_text": "Who?", "speaker_id": "nobody", "reference_wav": None, "reference_text": None, "reference_wav_len": None},
    {"target_text": "No session.", "is_start": False},
    {"target_text": "Bad id.", "session_id": "a b"},
    {"target_text": "Long. " * 2000},
    {"target_text": "Short.", "reference_wav_len": 10},
    {"is_cancel": True, "session_id": "nobody"},
)


@dataclass
class Talk:
    """One gRPC stream and the requests on it. ``codes``: of all errors; tritonclient does not tell which request they belong to.

    one_response: of a model that is not decoupled, whose error is the response with the final flag, which tritonclient hides then.
    """

    grpc_url: str
    one_response: bool = False
    codes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._client = triton.InferenceServerClient(self.grpc_url)
        self._events: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._audio: dict[str, list[NDArray[np.float32]]] = {}
        self._open: set[str] = set()
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)))

    def send(self, model: str = MODEL, outputs: list[str] | None = None, **values: Any) -> str:
        request_id = uuid.uuid4().hex
        inputs = [to_input(name, value) for name, value in values.items() if value is not None]
        wanted = None if outputs is None else [triton.InferRequestedOutput(name) for name in outputs]
        self._audio[request_id] = []
        self._open.add(request_id)
        self._client.async_stream_infer(model, inputs, request_id=request_id, outputs=wanted, enable_empty_final_response=True)
        return request_id

    def listen(self, seconds: float) -> None:
        """Receive for this long, or until everything is answered."""
        end = time.monotonic() + seconds
        while self._open and (left := end - time.monotonic()) > 0:
            try:
                self._take(*self._events.get(timeout=left))
            except queue.Empty:
                return

    def finish(self) -> None:
        """Wait for the final response of every request (else ``AssertionError``), then close."""
        self.listen(DEADLINE_S)
        if self._open:
            self.drop()
            raise AssertionError(f"{len(self._open)} requests have no final response after {DEADLINE_S:.0f} s; errors: {self.codes}")
        end_stream(self._client)
        unexpected = set(self.codes) - EXPECTED_CODES
        assert not unexpected, f"unexpected errors: {sorted(unexpected)}"

    def _take(self, result: Any, error: Any) -> None:
        if error is not None:
            assert error.status() is None, f"the stream broke: {error.message()}"
            known = parse_error(error.message())
            assert known.code in ERRORS_BY_CODE, error.message()
            self.codes.append(known.code)
            if known.code == "ENGINE_ERROR":
                raise AssertionError(error.message())
            if self.one_response:
                self._open.clear()
            return
        response = result.get_response()
        if (waveform := result.as_numpy("waveform")) is not None:
            self._audio[response.id].append(waveform.reshape(-1))
        if response.parameters["triton_final_response"].bool_param:
            self._open.discard(response.id)

    def audio(self, request_id: str) -> list[NDArray[np.float32]]:
        assert self._audio[request_id], "a session succeeded without audio"
        return self._audio[request_id]

    def drop(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


class Storm:
    """voices: inputs of a start, by name. ``run`` returns how often each behaviour was tried; ``failures`` lists what went wrong.

    offline: ``cosyvoice2`` is not decoupled.
    """

    def __init__(self, grpc_url: str, voices: dict[str, dict[str, Any]], seed: int, offline: bool = False) -> None:
        self._url = grpc_url
        self._offline = offline
        self._voices = voices
        self._seed = seed
        self._lock = threading.Lock()
        self._sizes: dict[tuple[Any, ...], int] = {}
        self._heard: dict[tuple[Any, ...], NDArray[np.float32]] = {}
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float, clients: int) -> Counter[str]:
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client, args=(number, end)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.counts

    def _client(self, number: int, end: float) -> None:
        choose = random.Random(self._seed * 1000 + number)
        behaviours: list[Callable[[random.Random], str]] = [self.whole, self.pieces, self.cancel, self.drop, self.wrong, self.twins]
        behaviours += [self.crowd, self.late_text, self.one_output, self.upstream, self.whole, self.pieces, self.long]
        while time.monotonic() < end and not self.failures:
            behaviour = self.killed if number == 0 and choose.random() < 0.2 else choose.choice(behaviours)
            try:
                outcome = behaviour(choose)
            except Exception as error:
                self.failures.append(f"{behaviour.__name__}: {type(error).__name__}: {error}")
                return
            with self._lock:
                self.counts[f"{behaviour.__name__} {outcome}"] += 1

    def _voice(self, choose: random.Random) -> tuple[str, dict[str, Any]]:
        name = choose.choice(sorted(self._voices))
        return name, self._voices[name]

    def _check(self, talk: Talk, request_id: str, key: tuple[Any, ...]) -> str:
        """A successful session is as long as every other with this key, and has the same audio where its hops were the same."""
        talk.finish()
        if talk.codes:
            return talk.codes[0]
        chunks = talk.audio(request_id)
        audio, hops = np.concatenate(chunks), tuple(chunk.size for chunk in chunks)
        with self._lock:
            size = self._sizes.setdefault(key, audio.size)
            before = self._heard.setdefault((*key, hops), audio)
        assert size == audio.size, f"different audio for {key}: {size} and {audio.size} samples"
        difference = float(np.abs(before - audio).max())  # another batch sums in another order
        assert difference < AUDIO_TOLERANCE, f"different audio for {key}: samples differ by {difference}"
        return "ok"

    # Behaviours: each returns its outcome

    def whole(self, choose: random.Random) -> str:
        (name, voice), text, seed = self._voice(choose), choose.choice(TEXTS), choose.randrange(2)
        talk = Talk(self._url)
        return self._check(talk, talk.send(target_text=text, seed=seed, **voice), ("whole", name, text, seed))

    def one_output(self, choose: random.Random) -> str:
        (name, voice), text = self._voice(choose), choose.choice(TEXTS)
        talk = Talk(self._url)
        return self._check(talk, talk.send(outputs=["waveform"], target_text=text, seed=0, **voice), ("whole", name, text, 0))

    def upstream(self, choose: random.Random) -> str:
        (name, voice), text = self._voice(choose), choose.choice(TEXTS)
        talk = Talk(self._url, one_response=self._offline)
        request_id = talk.send("cosyvoice2", target_text=text, **voice)
        if choose.random() < 0.3:
            talk.listen(choose.uniform(0, 0.5))
            talk.drop()
            return "dropped"
        return self._check(talk, request_id, ("upstream", name, text))

    def _ends(self, talk: Talk) -> str:
        talk.finish()
        return talk.codes[0] if talk.codes else "ok"

    def pieces(self, choose: random.Random) -> str:
        (name, voice), text, seed = self._voice(choose), choose.choice(TEXTS), choose.randrange(2)
        talk, session_id, data = Talk(self._url), uuid.uuid4().hex, text.encode()
        cuts = sorted(choose.randrange(len(data) + 1) for _ in range(choose.randrange(1, 6)))
        parts = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        start = talk.send(target_text=parts[0], session_id=session_id, is_end=False, seed=seed, **voice)
        for index, part in enumerate(parts[1:], 2):
            talk.listen(choose.choice((0.0, 0.0, 0.02, 0.1)))
            talk.send(target_text=part, session_id=session_id, is_start=False, is_end=index == len(parts))
        return self._check(talk, start, ("pieces", name, text, seed))

    def cancel(self, choose: random.Random) -> str:
        talk, session_id = Talk(self._url), uuid.uuid4().hex
        talk.send(target_text=choose.choice(TEXTS), session_id=session_id, is_end=choose.random() < 0.5, **self._voice(choose)[1])
        talk.listen(choose.choice((0.0, 0.001, 0.05, 0.5)))
        for _ in range(choose.randrange(1, 3)):
            talk.send(session_id=session_id, is_cancel=True)
        return self._ends(talk)

    def drop(self, choose: random.Random) -> str:
        talk = Talk(self._url)
        talk.send(target_text=choose.choice(TEXTS), session_id=uuid.uuid4().hex, is_end=choose.random() < 0.5, **self._voice(choose)[1])
        talk.listen(choose.choice((0.0, 0.001, 0.05, 0.5)))
        talk.drop()
        return "dropped"

    def long(self, choose: random.Random) -> str:
        """As much text at once as any test's server takes, and the client goes when it has heard something."""
        talk = Talk(self._url)
        talk.send(target_text=LONG_TEXT, is_end=choose.random() < 0.5, session_id=uuid.uuid4().hex, **self._voice(choose)[1])
        talk.listen(choose.uniform(0, 3))
        talk.drop()
        return talk.codes[0] if talk.codes else "dropped"

    def wrong(self, choose: random.Random) -> str:
        talk = Talk(self._url)
        talk.send(**{**self._voice(choose)[1], **choose.choice(BAD_VALUES)})
        outcome = self._ends(talk)
        assert outcome != "ok", "an invalid request was accepted"
        return outcome

    def twins(self, choose: random.Random) -> str:
        """Two streams start the same session; one cancels it, so that the outcome of the other does not matter."""
        session_id, voice = uuid.uuid4().hex, self._voice(choose)[1]
        talks = [Talk(self._url), Talk(self._url)]
        for talk in talks:
            talk.send(target_text=choose.choice(TEXTS), session_id=session_id, is_end=choose.random() < 0.7, **voice)
        if choose.random() < 0.3:
            talks.pop(choose.randrange(2)).drop()
        for talk in talks:
            talk.listen(choose.choice((0.0, 0.3)))
            talk.send(session_id=session_id, is_cancel=True)
        return max(self._ends(talk) for talk in talks)

    def crowd(self, choose: random.Random) -> str:
        """More sessions than there is room for, on one stream."""
        talk, voice = Talk(self._url), self._voice(choose)[1]
        for _ in range(choose.randrange(4, 20)):
            talk.send(target_text=choose.choice(TEXTS), **voice)
        if choose.random() < 0.4:
            talk.listen(choose.uniform(0, 1))
            talk.drop()
            return "dropped"
        return self._ends(talk)

    def late_text(self, choose: random.Random) -> str:
        """Text and cancels around the end of the text and of the session."""
        talk, session_id = Talk(self._url), uuid.uuid4().hex
        talk.send(target_text="Good ", session_id=session_id, is_end=False, **self._voice(choose)[1])
        for _ in range(choose.randrange(1, 6)):
            talk.send(target_text="morning. ", session_id=session_id, is_start=False, is_end=choose.random() < 0.6)
            talk.listen(choose.choice((0.0, 0.0, 0.05, 0.4)))
        talk.send(target_text="", session_id=session_id, is_start=False, is_end=True)
        return self._ends(talk)

    def killed(self, choose: random.Random) -> str:
        """A client process that gets SIGKILL at a random time between its start and its end."""
        command = [sys.executable, str(ROOT / "client/client_grpc.py"), "--server", self._url, "--text", TEXTS[1], "--text-rate", "20"]
        command += ["--reference-audio", str(ROOT / "assets/reference.wav"), "--reference-text", "A recording.", "--output", "/dev/null"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
            try:
                client.wait(choose.uniform(0.5, 3.0))
                return "was done"
            except subprocess.TimeoutExpired:
                client.kill()
                return "killed"


def full_house(grpc_url: str, voice: dict[str, Any], places: int) -> int:
    """How many of ``places`` sessions are admitted at the same time."""
    talks = [Talk(grpc_url) for _ in range(places)]
    for talk in talks:
        talk.send(target_text="", session_id=uuid.uuid4().hex, is_end=False, **voice)
    for talk in talks:
        talk.listen(1.0)
    for talk in talks:
        talk.drop()
    return sum(not talk.codes for talk in talks)
