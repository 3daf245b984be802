"""Many sessions at the same time say what each says alone.

Compared are the speech tokens; all samples of whole texts, whose hops are cut by their number of tokens alone; and of texts in pieces
the length, and the samples as far as hops were cut alike. Where their hops are cut depends on timing, and beyond a different cut the
flow's chunks and the vocoder's joints lie elsewhere: there the samples differ, also between two solo runs, and nothing is compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sounds import speech_like
from tests.triton.attacks.gauges import wait_free
from tests.triton.attacks.sizes import Sizes
from tests.triton.chaos import AUDIO_TOLERANCE
from tests.triton.processes import described, named, replaced
from tests.triton.reliability import Attack
from tests.triton.requests import Answer, Stream
from tests.triton.served import Served
from tests.triton.test_sessions import MODEL

MOST_SESSIONS = 64
WORDS = ("one", "sky", "tea", "sun", "oak", "bee", "ice", "map", "pen", "jar", "fog", "owl", "key", "net", "hat", "cup")


@dataclass(frozen=True)
class Part:
    """One of at most 64: each has a text of its own; voices and seeds are shared by some."""

    number: int

    @property
    def pieces(self) -> list[str]:
        word = WORDS[self.number % len(WORDS)]
        return [word[:2], f"{word[2:]} " + f"{word} " * 8, f"{self.number // len(WORDS)}."]

    @property
    def seed(self) -> int:
        return self.number % 3

    @property
    def voice(self) -> dict[str, Any]:
        return {
            "reference_wav": speech_like(seed=self.number % 4).reshape(1, -1),
            "reference_wav_len": 16000,
            "reference_text": "A reference.",
        }

    @property
    def prompt(self) -> dict[str, Any]:
        """A voice for the language model alone."""
        tokens = np.random.default_rng(self.number % 4).integers(0, 6561, 25).astype(np.int32)
        return {"prompt_text": "A reference.", "prompt_speech_tokens": tokens}


PARTS = [Part(number) for number in range(MOST_SESSIONS)]


def say(url: str, model: str, field: str, parts: Sequence[Part]) -> list[Answer]:
    """All start, then all get their second piece, then their third; every session on a stream of its own."""
    streams = [Stream(url) for _ in parts]
    try:
        ids = [uuid.uuid4().hex for _ in parts]
        starts = []
        for stream, session_id, part in zip(streams, ids, parts, strict=True):
            voice = part.prompt if model == "llm_bistream" else part.voice
            text = {field: part.pieces[0]}
            starts.append(stream.send(model, session_id=session_id, is_end=False, seed=part.seed, **text, **voice))
        for number in (1, 2):
            for stream, session_id, part in zip(streams, ids, parts, strict=True):
                accepted = stream.send(model, session_id=session_id, is_start=False, is_end=number == 2, **{field: part.pieces[number]})
                while not accepted.finals:
                    stream.receive_one(accepted)
                assert accepted.error is None, accepted.error
        return [stream.receive(start) for stream, start in zip(streams, starts, strict=True)]
    finally:
        for stream in streams:
            stream.drop()


def alone(url: str, model: str, field: str, parts: Sequence[Part]) -> list[Answer]:
    return [say(url, model, field, [part])[0] for part in parts]


def outcomes(answers: Sequence[Answer]) -> list[str]:
    return [str(answer.code or "audio") for answer in answers]


def tokens(answer: Answer) -> NDArray[np.int32]:
    return np.concatenate([output["speech_token_ids"].reshape(-1) for output in answer.outputs])


@pytest.mark.attack("interleaved sessions of `llm_bistream`, directly", must="the speech tokens of each are those of its solo run")
def test_interleaved_sessions_have_the_tokens_of_their_solos(busy: Served, sizes: Sizes, attack: Attack) -> None:
    url, before, parts = busy.keeper.addresses()["triton"], named(busy.keeper.pid), PARTS[: sizes.interleaved]
    solos = alone(url, "llm_bistream", "text", parts)
    together = say(url, "llm_bistream", "text", parts)
    attack.got(outcomes(together))
    attack.processes = described(before, named(busy.keeper.pid))
    differing = [part for part, one, other in zip(parts, solos, together, strict=True) if not np.array_equal(tokens(one), tokens(other))]
    assert differing == [] and all(tokens(one).size > 0 for one in solos)
    attack.remarks.append(
        f"{sum(tokens(one).size for one in solos)} tokens compared, {len({tokens(one).tobytes() for one in solos})} different solos"
    )
    wait_free(busy)


def equal_hops(one: Answer, other: Answer) -> int:
    """Samples up to which both were cut alike."""
    count = 0
    for first, second in zip(one.outputs, other.outputs, strict=False):
        if first["waveform"].size != second["waveform"].size:
            break
        count += first["waveform"].size
    return count


def difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The largest, over the common length."""
    size = min(one.size, other.size)
    return float(np.abs(one[:size] - other[:size]).max(initial=0.0))


@pytest.mark.attack(
    "interleaved sessions at the gate, fed in pieces",
    must=f"audio as long as the solo's; samples within {AUDIO_TOLERANCE} of the solo's as far as hops are cut alike (no others are "
    "compared)",
)
def test_interleaved_sessions_have_the_audio_of_their_solos(busy: Served, sizes: Sizes, attack: Attack) -> None:
    url, before, parts = busy.keeper.grpc_url, named(busy.keeper.pid), PARTS[: sizes.interleaved]
    solos = alone(url, MODEL, "target_text", parts)
    together = say(url, MODEL, "target_text", parts)
    attack.got(outcomes(together))
    attack.processes = described(before, named(busy.keeper.pid))
    assert set(outcomes(solos) + outcomes(together)) == {"audio"}
    alike = [equal_hops(one, other) for one, other in zip(solos, together, strict=True)]
    attack.remarks.append(
        f"{sum(alike) / sum(one.waveform.size for one in solos):.0%} of the samples cut alike, of {sum(map(bool, alike))} sessions"
    )
    assert [one.waveform.size for one in solos] == [other.waveform.size for other in together]
    far = [difference(one.waveform[:size], other.waveform[:size]) for one, other, size in zip(solos, together, alike, strict=True)]
    attack.remarks.append(f"differing by {max(far):.1g} at most")
    assert max(far) < AUDIO_TOLERANCE
    assert replaced(before, named(busy.keeper.pid)) == []
    wait_free(busy)


def render(url: str, parts: Sequence[Part]) -> list[Answer]:
    """Whole texts, at a speed of their own."""
    streams = [Stream(url) for _ in parts]
    try:
        starts = [
            stream.send(MODEL, target_text="".join(part.pieces), seed=part.seed, speed=1.25, **part.voice)
            for stream, part in zip(streams, parts, strict=True)
        ]
        return [stream.receive(start) for stream, start in zip(streams, starts, strict=True)]
    finally:
        for stream in streams:
            stream.drop()


@pytest.mark.attack(
    "sessions at the gate at the same time, of whole texts at a speed of their own",
    must=f"all samples within {AUDIO_TOLERANCE} of the solo's, and further from the solo of every other session",
)
def test_whole_texts_have_the_samples_of_their_solos(busy: Served, sizes: Sizes, attack: Attack) -> None:
    url, before, parts = busy.keeper.grpc_url, named(busy.keeper.pid), PARTS[: sizes.utterances]
    solos = [render(url, [part])[0] for part in parts]
    together = render(url, parts)
    attack.got(outcomes(together))
    attack.processes = described(before, named(busy.keeper.pid))
    assert set(outcomes(solos) + outcomes(together)) == {"audio"}
    assert [one.waveform.size for one in solos] == [other.waveform.size for other in together]
    far = np.array([[difference(heard.waveform, solo.waveform) for solo in solos] for heard in together])
    own, foreign = far.diagonal(), (far + np.diag(np.full(len(parts), np.inf))).min(1)
    attack.remarks.append(f"differing by {own.max():.1g} at most from the own solo, by {foreign.min():.1g} or more from another's")
    assert own.max() < AUDIO_TOLERANCE and (foreign > own).all()
    assert replaced(before, named(busy.keeper.pid)) == []
    wait_free(busy)
