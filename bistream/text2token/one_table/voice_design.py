"""Makes a voice from labels (gender, pitch, speed): the model writes its acoustic values and 32 global tokens, as it would before speaking.

A voice is made once and then spoken with like that of a recording; kept, it stays the same. It is made from a text, the first that is to be
spoken: another text with the same seed makes another voice. Two turns of an engine of its own (``loading``), whose speech tokens these are:

    [prompt] start_acoustic_token -> pitch, speed    end_acoustic_token start_global_token -> 32 global tokens
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bistream.checkpoints.one_table import OneTableConfig
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.families.bicodec_tokens import NUM_GLOBAL
from bistream.text2token.engine import (
    SEQUENCE_FAILED_SENTENCE,
    Engine,
    EngineSequence,
    SamplingSpec,
    TokenSpace,
    TurnEnd,
    TurnLimits,
    TurnResult,
)
from bistream.text2token.one_table.prompts import Encode, Labels, SpeakerTokens, labels_prompt

Made = Callable[[SpeakerTokens | BistreamError], None]
ACOUSTIC_VALUES = 2


@dataclass(frozen=True)
class VoiceRequest:
    """id: of the caller's, one at a time. text: what will be spoken first."""

    id: str
    text: str
    labels: Labels
    spec: SamplingSpec


class VoiceDesigner:
    """Thread-safe."""

    def __init__(self, engine: Engine, sizes: OneTableConfig, encode: Encode) -> None:
        """engine: of ``sizes.of_voices``."""
        self._engine = engine
        self._sizes = sizes
        self._encode = encode

    def begin(self, request: VoiceRequest, made: Made) -> Callable[[], None]:
        """made: called once, from the engine's thread. Returns what cancels the work; ``made`` is then called with an error.

        Raises ``InvalidInputError`` for a text that is too long, and as ``Engine.open``.
        """
        tokens = self._sizes.tokens
        prompt = labels_prompt(tokens, self._encode, request.text, request.labels)
        needed = len(prompt) + NUM_GLOBAL + ACOUSTIC_VALUES + 3
        surplus = needed - self._engine.capabilities.max_sequence_ids
        if surplus > 0:
            most = len(self._encode(request.text)) - surplus
            raise InvalidInputError(f"A voice is made from a text of at most {most} tokens; send a shorter one.")
        return _Making(self._engine, request, self._sizes, made).begin([*prompt, tokens.id("start_acoustic_token")], needed)

    def make(self, request: VoiceRequest) -> SpeakerTokens:
        """Waits. Raises as ``begin``, and ``EngineError``."""
        found: list[SpeakerTokens | BistreamError] = []
        done = threading.Event()

        def made(result: SpeakerTokens | BistreamError) -> None:
            found.append(result)
            done.set()

        self.begin(request, made)
        done.wait()
        if isinstance(found[0], BistreamError):
            raise found[0]
        return found[0]


class _Making:
    """One voice; a ``TurnSink``."""

    def __init__(self, engine: Engine, request: VoiceRequest, sizes: OneTableConfig, made: Made) -> None:
        self._request, self._made = request, made
        self._tokens = sizes.tokens
        self._space = TokenSpace.of(sizes.of_voices)
        self._firsts = [phase.start for phase in sizes.voice_phases]
        self._sequence: EngineSequence | None = None
        self._engine = engine
        self._ids: list[int] = []  # in the order of the head's rows

    def begin(self, ids: Sequence[int], max_ids: int) -> Callable[[], None]:
        self._sequence = self._engine.open(self._request.id, self._request.spec, max_ids)
        try:
            self._sequence.turn(ids, self._limits(ACOUSTIC_VALUES), self)
        except BaseException:
            self._sequence.close()
            raise
        return self._sequence.cancel

    def on_ids(self, ids: Sequence[int]) -> None:
        self._ids += [self._space.speech_token(one) for one in ids]

    def on_end(self, result: TurnResult) -> None:
        """If this raised, nobody would be told."""
        assert self._sequence is not None
        try:
            if result.end is TurnEnd.LENGTH and len(self._ids) == ACOUSTIC_VALUES:
                between = (self._tokens.id("end_acoustic_token"), self._tokens.id("start_global_token"))
                self._sequence.turn(between, self._limits(NUM_GLOBAL), self)
                return
            made = self._result(result)
        except BistreamError as error:
            made = error
        self._sequence.close()
        self._made(made)

    def _result(self, result: TurnResult) -> SpeakerTokens | BistreamError:
        if result.end is not TurnEnd.LENGTH or len(self._ids) != ACOUSTIC_VALUES + NUM_GLOBAL:
            return EngineError(result.error or SEQUENCE_FAILED_SENTENCE, self._request.id)
        pitch, speed, first_global = self._firsts
        codes = tuple(one - first_global for one in self._ids[ACOUSTIC_VALUES:])
        return SpeakerTokens(codes, self._request.labels, self._ids[0] - pitch, self._ids[1] - speed)

    def _limits(self, count: int) -> TurnLimits:
        return TurnLimits(count, forbidden=frozenset(self._space.specials))
