"""The client sends the hash of a recording that the server has heard; that it was forgotten is seen by nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.client.audio import read_reference
from bistream.client.client import BistreamClient
from bistream.client.known_voices import CAPACITY, MAX_REFUSALS, KnownVoices
from bistream.contract.voices import reference_hash
from bistream.errors import CancelledError
from tests.unit.client.fake_server import FakeServer, Received, Speaker, Stream

RECORDING = np.linspace(-1, 1, 16000, dtype=np.float32)
HASH = reference_hash(RECORDING, "said")
FORGOTTEN = "UNKNOWN_VOICE: Send the recording. [session s]"


class Server:
    """One voice at most, forgotten when ``heard`` is set to false. Sessions by id and secret. late: the error of a piece without a session.
    holds: the number of further requests after which an unknown hash is refused."""

    def __init__(self, late: str = FORGOTTEN) -> None:
        self.late = late
        self.heard = False
        self.holds = 0
        self._speakers: dict[str, Speaker] = {}
        self._held: list[Callable[[], None]] = []
        self.fake = FakeServer(self._behave)

    def _behave(self, request: Received, stream: Stream) -> None:
        if "is_start" in request.inputs and request.flag("is_start"):
            self._speakers.pop(request.secret, None)  # of an earlier session of this name
            if "reference_hash" in request.inputs and not self.heard:
                self._refuse(lambda: stream.error(request.id, FORGOTTEN))
                return
            self.heard = True
            self._speakers[request.secret] = Speaker()
        elif request.secret not in self._speakers:
            self._refuse(lambda: stream.error(request.id, self.late))
            return
        self._speakers[request.secret](request, stream)

    def _refuse(self, tell: Callable[[], None]) -> None:
        self._held.append(tell)
        if len(self._held) > self.holds:
            for one in self._held:
                one()
            self._held.clear()
            self.holds = 0

    @property
    def starts(self) -> list[str]:
        """What voice each start brought."""
        starts = [one.inputs for one in self.fake.received if "is_start" in one.inputs and one.flag("is_start")]
        return ["hash" if "reference_hash" in inputs else "recording" for inputs in starts]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.fake.stop()


def start(client: Any, text: str = "", is_end: bool = False, reference_text: str = "said") -> Any:
    return client.start(reference_wav=RECORDING, reference_text=reference_text, text=text, is_end=is_end, session_id="s")


def speak(client: Any, reference_text: str = "said") -> int:
    with start(client, "Hello.", True, reference_text) as session:
        return len(list(session))


def test_the_recording_goes_once_and_then_its_hash(server: Server, connect: Callable[..., Any]) -> None:
    client = connect(server.fake.address)
    assert [speak(client) for _ in range(3)] == [1, 1, 1]
    assert server.starts == ["recording", "hash", "hash"]
    second = server.fake.received[1].inputs
    assert second["reference_hash"].decode() == HASH and not {"reference_wav", "reference_wav_len", "reference_text"} & set(second)
    assert speak(client, "something else") == 1
    assert server.starts[-1] == "recording", "another transcript is another voice"
    assert speak(connect(server.fake.address)) == 1
    assert server.starts[-1] == "recording", "another client asks nobody"


@pytest.mark.parametrize(("pieces", "held"), [(0, 0), (3, 0), (3, 2)])
def test_a_forgotten_voice_is_sent_again_with_all_the_text(server: Server, connect: Callable[..., Any], pieces: int, held: int) -> None:
    """held: the refusal comes after so many pieces, and those are refused as well."""
    client = connect(server.fake.address)
    speak(client)
    server.heard, server.holds = False, min(held, pieces)
    with start(client, "Hel") as session:
        for number in range(pieces):
            session.push_text(f"p{number}")
        session.end_text("lo.")
        heard = [chunk.sequence_number for chunk in session]
        with pytest.raises(CancelledError):
            session.push_text("more")
    assert heard == list(range(pieces + 2)) and session.session_id == "s"
    assert server.starts == ["recording", "hash", "recording"]
    again = [one for one in server.fake.received if one.secret == server.fake.received[-1].secret]
    texts = [one.inputs["target_text"] for one in again]
    assert texts == [b"Hel", *(f"p{number}".encode() for number in range(pieces)), b"lo."]
    assert again[0].inputs["reference_text"] == b"said"
    np.testing.assert_array_equal(again[0].inputs["reference_wav"][0], RECORDING)
    assert speak(client) == 1 and server.starts[-1] == "hash"


def test_pieces_behind_a_refused_hash_may_have_no_session() -> None:
    server = Server(late="UNKNOWN_SESSION: No live session has this id. [session s]")
    client = BistreamClient(server.fake.address)
    speak(client)
    server.heard, server.holds = False, 1
    with start(client, "Hel") as session:
        session.end_text("lo.")
        assert len(list(session)) == 2
    assert server.starts == ["recording", "hash", "recording"]
    server.fake.stop()


def test_a_server_that_always_forgets_is_asked_no_more(server: Server) -> None:
    client = BistreamClient(server.fake.address)
    speak(client)
    for _ in range(MAX_REFUSALS + 2):
        server.heard = False
        assert speak(client) == 1
    assert server.starts == ["recording"] + MAX_REFUSALS * ["hash", "recording"] + 2 * ["recording"]


def test_many_threads_share_a_client(server: Server) -> None:
    client, failures = BistreamClient(server.fake.address), []

    def run() -> None:
        for _ in range(3):
            if speak(client) != 1:
                failures.append("no audio")

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and server.starts[-1] == "hash"


def test_the_memory_is_bounded() -> None:
    known = KnownVoices()
    for number in range(CAPACITY + 10):
        known.accepted(str(number))
        known.accepted("0")
    assert "0" in known and "5" not in known and str(CAPACITY + 9) in known
    assert sum(str(number) in known for number in range(CAPACITY + 10)) == CAPACITY


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([8000, 16000, 22050, 44100, 48000]), st.integers(1, 3))
def test_the_same_samples_in_other_files_have_the_same_hash(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rate: int, channels: int
) -> None:
    """After the client's own resampling, whatever the container. A change of one step is another voice."""
    folder = tmp_path_factory.mktemp("files")
    samples = np.random.default_rng(seed).integers(-20000, 20000, rate // 10).astype(np.int16)
    wide = np.repeat(samples[:, None], channels, axis=1)
    found = set()
    for name, subtype in (("a.wav", "PCM_16"), ("b.wav", "PCM_24"), ("c.wav", "FLOAT"), ("d.flac", "PCM_16"), ("e.aiff", "PCM_16")):
        values = wide.astype(np.float32) / 32768 if subtype == "FLOAT" else wide
        soundfile.write(folder / name, values, rate, subtype=subtype)
        found.add(reference_hash(read_reference(folder / name), "said"))
    assert len(found) == 1
    wide[0] += 1
    soundfile.write(folder / "f.wav", wide, rate)
    assert reference_hash(read_reference(folder / "f.wav"), "said") not in found


def test_closing_during_the_second_attempt_is_quiet(server: Server) -> None:
    client = BistreamClient(server.fake.address)
    for _ in range(3):
        server.heard = True
        speak(client)
        server.heard = False
        session = start(client, "Hello")
        session.close()
        with pytest.raises((CancelledError, ConnectionError)):  # ours, or gRPC's cancellation, whichever is heard first
            list(session)
