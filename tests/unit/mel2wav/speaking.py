"""Sessions of any vocoder, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from bistream.mel2wav.stage import VocoderHop
from bistream.mel2wav.vocoder import Vocoder
from bistream.types import FloatArray
from tests.unit.mel2wav.tiny import voiced_mel

Session = tuple[Sequence[int], int]  # new frames of each hop, and how many turns it begins after the others
cuts_of_session = st.tuples(st.lists(st.integers(0, 45), min_size=1, max_size=4), st.integers(0, 2))


def speak(stage: Vocoder, sessions: Sequence[Session], broken: Sequence[int] = ()) -> list[list[FloatArray]]:
    """Pieces of each session; all advance in the same calls. broken: sessions with a frame of NaN."""
    states = [stage.open(1000 * index - 1) for index in range(len(sessions))]
    mels = [voiced_mel(sum(cuts), seed=index) for index, (cuts, _) in enumerate(sessions)]
    for index in broken:
        mels[index][:, 1] = float("nan")
    pieces: list[list[FloatArray]] = [[] for _ in sessions]
    for turn in range(max(delay + len(cuts) for cuts, delay in sessions)):
        members, hops = [], []
        for index, (cuts, delay) in enumerate(sessions):
            step = turn - delay
            if 0 <= step < len(cuts):
                begin = sum(cuts[:step])
                hops.append(VocoderHop(states[index], mels[index][:, begin : begin + cuts[step]], step == len(cuts) - 1))
                members.append(index)
        for index, piece in zip(members, stage.hop(hops), strict=True):
            pieces[index].append(piece)
    for state in states:
        state.close()
    return pieces


def check_equal(
    found: Sequence[Sequence[FloatArray]], expected: Sequence[Sequence[FloatArray]], tolerance: float, error_db: float | None = None
) -> None:
    """tolerance: of a sample. error_db: the least ratio of signal to error of each piece, if any."""
    for pieces, exact in zip(found, expected, strict=True):
        assert [len(piece) for piece in pieces] == [len(piece) for piece in exact]
        for piece, other in zip(pieces, exact, strict=True):
            np.testing.assert_allclose(piece, other, rtol=0, atol=tolerance)
            if error_db is not None and len(piece):
                assert np.square(piece - other).mean() < 10 ** (-error_db / 10) * np.square(other).mean()
