"""Speech that is decoded while its tokens are still being made: push tokens, get the samples that are due.

The codec looks as far to the right as to the left: the samples of a token depend on so many tokens to each side, its *reach* (67 at the
released depths). A sample is due in one of two ways:

- exactly, once all tokens within reach are there: those of one call over the whole speech, however the tokens are cut. Every layer goes on
  where it stopped and answers when it can, so nothing is computed twice, and what a session keeps is a vector of fixed size (0.9 MB);
- early, where a push says with how many tokens behind them: a window of the tokens within reach is decoded as if the speech ended there.
  That is exact for the last samples, and for those before a pause without any; elsewhere they are approximations, the better the more
  tokens are behind them, and those that follow don't repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bistream.bicodec.decoding import MAX_BATCH_TOKENS, check_semantic, decode_windows, padded_tokens, voice_of
from bistream.bicodec.network import BiCodec
from bistream.bicodec.recorded import RecordedCalls
from bistream.bicodec.signal import Part, SignalParts
from bistream.errors import InvalidInputError
from bistream.mel2wav.grouping import group_similar
from bistream.types import FloatArray, IntArray


@dataclass(eq=False)
class SpeechState:
    """One speech. voice: [C]. recent: its last tokens, from ``reach`` before the first one that is not heard.

    layers: what they remember, [numbers]; None: they begin anew, ``reach`` before the next sample. They began at token ``layers_began``
    and have read those before ``layers_read``.
    """

    voice: Tensor
    layers: Tensor | None = None
    layers_began: int = 0
    layers_read: int = 0
    recent: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    received_tokens: int = 0
    emitted_samples: int = 0
    finalized: bool = False

    def close(self) -> None:
        """Free the arrays; nothing more can be pushed. Idempotent."""
        self.voice, self.layers, self.recent = torch.empty(0), None, self.recent[:0]
        self.finalized = True

    @property
    def numbers(self) -> int:
        """That it keeps."""
        return self.voice.numel() + len(self.recent) + (0 if self.layers is None else self.layers.numel())

    def tokens_from(self, first: int) -> IntArray:
        """Those from number ``first`` of the speech on."""
        return self.recent[len(self.recent) - (self.received_tokens - first) :]


@dataclass(frozen=True)
class TokenPush:
    """New semantic tokens int [n] of a speech, n possibly 0. final: it ends here. lookahead: tokens behind the last that is due; None: all
    within reach."""

    state: SpeechState
    tokens: IntArray
    final: bool = False
    lookahead: int | None = None


def reach_samples(network: BiCodec) -> tuple[int, int]:
    """How many samples late a stream is, which is how far the network looks to each side beyond a token; and the numbers of a state.

    Measured by sending one token through the layers.
    """
    device = network.prenet.linear.weight.device
    signal = SignalParts.of(None, [Part(0, 1)], device)
    network.audio(
        torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros(1, network.config.speaker.output_size, device=device), signal
    )
    return signal.delay, signal.kept().shape[1]


class SpeechDecoder:
    """reach: tokens to each side that matter."""

    def __init__(self, network: BiCodec, records: bool = False) -> None:
        """records: calls in graphs, on a GPU."""
        self._network = network
        self._token_samples = network.config.samples_per_token
        self._delay, self._state_size = reach_samples(network)
        self._recorded = RecordedCalls(network, self._state_size) if records else None
        self.reach = -(-self._delay // self._token_samples)

    def open(self, global_tokens: IntArray) -> SpeechState:
        """A speech of no tokens yet, in the voice of these, int [32]. Raises ``InvalidInputError``."""
        return SpeechState(voice_of(self._network, global_tokens))

    def push(self, pushes: Sequence[TokenPush]) -> list[FloatArray]:
        """The samples that are due, float32 [N] for each push: up to ``lookahead`` tokens before the last; with the final push all are.

        Every state at most once. Raises ``InvalidInputError`` before anything is computed or changed.
        """
        _check(self._network, pushes)
        for push in pushes:
            state = push.state
            state.recent = np.concatenate([state.recent, push.tokens.astype(np.int32)])
            state.received_tokens += len(push.tokens)
        exact = [row for row, push in enumerate(pushes) if self._makes_exact_samples(push)]
        early = [row for row, push in enumerate(pushes) if row not in exact and self._early_samples(push) > 0]
        audio = [np.zeros(0, np.float32) for _ in pushes]
        for rows, compute in ((exact, self._exact), (early, self._early)):
            for row, samples in zip(rows, compute([pushes[row] for row in rows]), strict=True):
                audio[row] = samples
        for push, samples in zip(pushes, audio, strict=True):
            self._advance(push, len(samples))
        return audio

    # Exact

    def _makes_exact_samples(self, push: TokenPush) -> bool:
        state = push.state
        if self._lookahead(push) < self.reach:
            return False
        return state.received_tokens * self._token_samples - self._delay > state.emitted_samples

    def _exact(self, pushes: Sequence[TokenPush]) -> list[FloatArray]:
        for push in pushes:
            if push.state.layers is None:
                push.state.layers = push.state.voice.new_zeros(self._state_size)
                push.state.layers_began = push.state.layers_read = self._first_within_reach(push.state)
        audio = [np.zeros(0, np.float32) for _ in pushes]
        for group in group_similar([push.state.received_tokens - push.state.layers_read for push in pushes], MAX_BATCH_TOKENS):
            for row, samples in zip(group, self._through_layers([pushes[row].state for row in group]), strict=True):
                audio[row] = samples
        return audio

    def _through_layers(self, states: Sequence[SpeechState]) -> list[FloatArray]:
        """One network call."""
        device = states[0].voice.device
        new = [state.tokens_from(state.layers_read) for state in states]
        parts = [Part(state.layers_read - state.layers_began, len(tokens)) for state, tokens in zip(states, new, strict=True)]
        stored = torch.stack([state.layers for state in states if state.layers is not None])
        tokens, voices = padded_tokens(new, max(map(len, new))).to(device), torch.stack([state.voice for state in states])
        recorded = None if self._recorded is None else self._recorded.push(tokens, parts, voices, stored)
        if recorded is None:
            signal = SignalParts.of(stored, parts, device)
            recorded = self._network.audio(tokens, voices, signal), signal.kept()
        made, kept = recorded
        assert kept is not None
        samples = made.cpu().numpy()
        audio = []
        for row, state in enumerate(states):
            first = state.layers_read * self._token_samples - self._delay
            state.layers, state.layers_read = kept[row].clone(), state.received_tokens
            end = state.received_tokens * self._token_samples - self._delay
            audio.append(samples[row, state.emitted_samples - first : end - first].copy())
        return audio

    # Early

    def _early_samples(self, push: TokenPush) -> int:
        return (push.state.received_tokens - self._lookahead(push)) * self._token_samples - push.state.emitted_samples

    def _lookahead(self, push: TokenPush) -> int:
        return 0 if push.final else self.reach if push.lookahead is None else min(push.lookahead, self.reach)

    def _early(self, pushes: Sequence[TokenPush]) -> list[FloatArray]:
        firsts = [self._first_within_reach(push.state) for push in pushes]
        windows = [push.state.tokens_from(first) for push, first in zip(pushes, firsts, strict=True)]
        voices = [push.state.voice for push in pushes]
        audio = []
        for push, first, samples in zip(pushes, firsts, decode_windows(self._network, windows, voices, self._recorded), strict=True):
            begin = push.state.emitted_samples - first * self._token_samples
            audio.append(samples[begin : begin + self._early_samples(push)].copy())
        return audio

    def _first_within_reach(self, state: SpeechState) -> int:
        """The first token that matters to the next sample."""
        return max(0, state.emitted_samples // self._token_samples - self.reach)

    def _advance(self, push: TokenPush, samples: int) -> None:
        state = push.state
        state.emitted_samples += samples
        first = self._first_within_reach(state)
        state.recent = state.tokens_from(max(first, state.received_tokens - len(state.recent))).copy()
        if first > state.layers_read:  # the layers lack tokens that are gone, and don't need them
            state.layers = None
        if push.final:
            state.close()


def _check(network: BiCodec, pushes: Sequence[TokenPush]) -> None:
    for push in pushes:
        if push.state.finalized:
            raise InvalidInputError("This speech has ended; open another one.")
        if push.lookahead is not None and push.lookahead < 0:
            raise InvalidInputError(f"The lookahead is {push.lookahead} tokens; send 0 or more.")
        check_semantic(network, push.tokens)
    assert len({id(push.state) for push in pushes}) == len(pushes), "a state at most once"
