"""How much of each attack is done: in minutes with every change, and longer on demand (``--long-attacks``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    inputs: int  # random ones, for each model and port
    soak_sessions: int
    interleaved: int  # sessions at the same time, fed in pieces
    utterances: int  # whole texts, at the same time
    rounds: int  # of sessions that get nothing, or whose client reads nothing


SHORT = Sizes(inputs=30, soak_sessions=32, interleaved=6, utterances=4, rounds=1)
LONG = Sizes(inputs=500, soak_sessions=2000, interleaved=64, utterances=64, rounds=2)
