"""Speech that is decoded while its tokens are still being made: push tokens, get the samples that are due.

The codec looks as far to the right as to the left: the samples of a token depend on so many tokens to each side, its *reach* (67 at the
released depths). ``make_decoder`` chooses between two forms:

- exact: samples are those of one call over the whole speech, however the tokens are cut. Every layer goes on where it stopped and answers
  when it can, so nothing is computed twice, and what a session keeps is one vector of fixed size (0.9 MB at full size);
- cut: a window [reach | due | lookahead] is decoded for every push. Samples come earlier and are approximations; the left side is computed
  again each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bistream.bicodec.decoding import MAX_BATCH_TOKENS, check_semantic, decode_windows, padded_tokens, voice_of
from bistream.bicodec.network import BiCodec
from bistream.bicodec.signal import Part, SignalParts
from bistream.errors import InvalidInputError
from bistream.mel2wav.grouping import group_similar
from bistream.types import FloatArray, IntArray


@dataclass(eq=False)
class SpeechState:
    """One speech. voice: [C]. layers: of the exact form, [numbers], None before any token. recent: of the other form, the last tokens,
    int32 [reach + lookahead] or fewer."""

    voice: Tensor
    layers: Tensor | None = None
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


@dataclass(frozen=True)
class TokenPush:
    """New semantic tokens int [n] of a speech, n possibly 0; final: its last ones."""

    state: SpeechState
    tokens: IntArray
    final: bool = False


class SpeechDecoder(Protocol):
    """lookahead_tokens: tokens that must follow a token before its samples are due; at the end of a speech none must."""

    lookahead_tokens: int

    def open(self, global_tokens: IntArray) -> SpeechState:
        """A speech of no tokens yet, in the voice of these, int [32]. Raises ``InvalidInputError``."""

    def push(self, pushes: Sequence[TokenPush]) -> list[FloatArray]:
        """The samples that are due, float32 [N] for each push; after the final one ``samples_per_token`` per token in all.

        Every state at most once. Raises ``InvalidInputError`` before anything is computed or changed.
        """


def reach_samples(network: BiCodec) -> tuple[int, int]:
    """How many samples late a stream is, which is how far the network looks to each side beyond a token; and the numbers of a state.

    Measured by sending one token through the layers.
    """
    device = network.prenet.linear.weight.device
    signal = SignalParts(None, [Part(0, 1)], device)
    network.audio(
        torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros(1, network.config.speaker.output_size, device=device), signal
    )
    return signal.delay, signal.kept().shape[1]


def make_decoder(network: BiCodec, lookahead_tokens: int | None = None) -> SpeechDecoder:
    """lookahead_tokens: None or as many as the network's reach: exact; fewer: cut. Raises ``ValueError`` below 0."""
    delay, state_size = reach_samples(network)
    reach = -(-delay // network.config.samples_per_token)
    if lookahead_tokens is None or lookahead_tokens >= reach:
        return ExactDecoder(network, delay, state_size)
    if lookahead_tokens < 0:
        raise ValueError(f"lookahead_tokens is {lookahead_tokens}, and must not be negative")
    return CutDecoder(network, reach, lookahead_tokens)


class ExactDecoder:
    """``SpeechDecoder``. delay: samples that the layers are late."""

    def __init__(self, network: BiCodec, delay: int, state_size: int) -> None:
        self._network, self._delay, self._state_size = network, delay, state_size
        self._token_samples = network.config.samples_per_token
        self.lookahead_tokens = -(-delay // self._token_samples)

    def open(self, global_tokens: IntArray) -> SpeechState:
        return SpeechState(voice_of(self._network, global_tokens))

    def push(self, pushes: Sequence[TokenPush]) -> list[FloatArray]:
        _check(self._network, pushes)
        audio = [np.zeros(0, np.float32) for _ in pushes]
        counts = [self._tokens_through(push) for push in pushes]
        for group in group_similar(counts, MAX_BATCH_TOKENS):
            if counts[group[0]]:
                samples = self._group([pushes[row] for row in group], [counts[row] for row in group])
                for row, row_samples in zip(group, samples, strict=True):
                    audio[row] = row_samples
            for row in group:
                _advance(pushes[row], len(audio[row]))
        return audio

    def _tokens_through(self, push: TokenPush) -> int:
        """Tokens to send through the layers: at the end as many behind the last one as it takes until its samples come out."""
        new = len(push.tokens)
        return new + (self.lookahead_tokens if push.final and push.state.received_tokens + new else 0)

    def _group(self, pushes: Sequence[TokenPush], counts: Sequence[int]) -> list[FloatArray]:
        """Of one network call. Puts the new layers into the states; the rest is left to ``push``."""
        device = pushes[0].state.voice.device
        parts = [_part(push, count) for push, count in zip(pushes, counts, strict=True)]
        signal = SignalParts(torch.stack([self._layers(push.state) for push in pushes]), parts, device)
        tokens = padded_tokens([push.tokens for push in pushes], max(counts)).to(device)
        made = self._network.audio(tokens, torch.stack([push.state.voice for push in pushes]), signal)
        samples, kept = made.cpu().numpy(), signal.kept()
        for row, push in enumerate(pushes):
            push.state.layers = None if push.final else kept[row].clone()
        return [self._due(part, row_samples) for part, row_samples in zip(parts, samples, strict=True)]

    def _layers(self, state: SpeechState) -> Tensor:
        return state.voice.new_zeros(self._state_size) if state.layers is None else state.layers

    def _due(self, part: Part, samples: FloatArray) -> FloatArray:
        """samples: from ``delay`` before the first of the part's tokens on -> those of the speech."""
        first = part.start * self._token_samples - self._delay
        behind = part.count * self._token_samples if part.end is None else part.end * self._token_samples - first
        return samples[max(0, -first) : max(0, behind)].copy()


def _part(push: TokenPush, count: int) -> Part:
    received = push.state.received_tokens
    return Part(received, count, received + len(push.tokens) if push.final else None)


class CutDecoder:
    """``SpeechDecoder``. reach: tokens to the left of the due ones that are decoded with them."""

    def __init__(self, network: BiCodec, reach: int, lookahead_tokens: int) -> None:
        self._network, self._reach = network, reach
        self._token_samples = network.config.samples_per_token
        self.lookahead_tokens = lookahead_tokens

    def open(self, global_tokens: IntArray) -> SpeechState:
        return SpeechState(voice_of(self._network, global_tokens))

    def push(self, pushes: Sequence[TokenPush]) -> list[FloatArray]:
        _check(self._network, pushes)
        windows, spans = zip(*map(self._window, pushes), strict=True) if pushes else ((), ())
        used = [tokens if due else tokens[:0] for tokens, (_, due) in zip(windows, spans, strict=True)]
        audio = decode_windows(self._network, used, [push.state.voice for push in pushes])
        samples = []
        for push, tokens, (left, due), row in zip(pushes, windows, spans, audio, strict=True):
            samples.append(row[left * self._token_samples : (left + due) * self._token_samples].copy())
            push.state.recent = tokens[max(0, left + due - self._reach) :].copy()
            _advance(push, len(samples[-1]))
        return samples

    def _window(self, push: TokenPush) -> tuple[IntArray, tuple[int, int]]:
        """All tokens that matter; how many of them are context on the left, and how many are due."""
        state = push.state
        tokens = np.concatenate([state.recent, push.tokens.astype(np.int32)])
        open_tokens = state.received_tokens + len(push.tokens) - state.emitted_samples // self._token_samples
        due = max(0, open_tokens - (0 if push.final else self.lookahead_tokens))
        return tokens, (len(tokens) - open_tokens, due)


def _check(network: BiCodec, pushes: Sequence[TokenPush]) -> None:
    for push in pushes:
        if push.state.finalized:
            raise InvalidInputError("This speech has ended; open another one.")
        check_semantic(network, push.tokens)
    assert len({id(push.state) for push in pushes}) == len(pushes), "a state at most once"


def _advance(push: TokenPush, samples: int) -> None:
    push.state.received_tokens += len(push.tokens)
    push.state.emitted_samples += samples
    if push.final:
        push.state.close()
