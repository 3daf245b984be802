"""Makes a voice from labels (gender, pitch, speed): the model writes its acoustic values and 32 global tokens, as it would before speaking.

A voice is made once and then spoken with like that of a recording; kept, it stays the same. The model makes it from a text, and another
voice from another text. Upstream gives it the first text that is to be spoken; here it is always ``SENTENCE``. So a voice depends on its
labels and its seed alone, whatever is spoken, and it can be made before any text is there. Two turns of an engine of its own (``loading``),
whose speech tokens these are:

    [prompt] start_acoustic_token -> pitch, speed    end_acoustic_token start_global_token -> 32 global tokens
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

from bistream.checkpoints.one_table import OneTableConfig
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.families.bicodec_tokens import NUM_GLOBAL
from bistream.text2token.engine import SEQUENCE_FAILED_SENTENCE, Engine, EngineSequence, TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.one_table.prompts import Encode, Labels, SpeakerTokens, labels_prompt
from bistream.text2token.requested_sampling import make_sampling_spec
from bistream.types import GenerationOptions

Made = Callable[[SpeakerTokens | BistreamError], None]
ACOUSTIC_VALUES = 2
SENTENCE = "The weather is fine today, so we are going for a walk in the park."  # neutral; another one would change every voice


class VoiceDesigner:
    """Thread-safe. Samples as the checkpoint's release speaks: a session's own temperature and others are of its speech."""

    def __init__(self, engine: Engine, sizes: OneTableConfig, encode: Encode) -> None:
        """engine: of ``sizes.of_voices``."""
        self._engine = engine
        self._sizes = sizes
        self._encode = encode
        self._numbers = itertools.count()  # of the voices, by which the engine knows them

    @property
    def healthy(self) -> bool:
        """False once the engine has failed; only a new process can recover."""
        return self._engine.healthy

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def begin(self, labels: Labels, seed: int, made: Made, text: str = SENTENCE) -> Callable[[], None]:
        """made: called once, from the engine's thread. Returns what cancels the work; ``made`` is then called with an error.

        Raises ``InvalidInputError`` for a text that is too long, and as ``Engine.open``.
        """
        tokens = self._sizes.tokens
        prompt = labels_prompt(tokens, self._encode, text, labels)
        needed = len(prompt) + NUM_GLOBAL + ACOUSTIC_VALUES + 3
        surplus = needed - self._engine.longest_sequence
        if surplus > 0:
            most = len(self._encode(text)) - surplus
            raise InvalidInputError(f"A voice is made from a text of at most {most} tokens; send a shorter one.")
        spec = make_sampling_spec(GenerationOptions(seed=seed), self._sizes)
        sequence = self._engine.open(f"voice-{next(self._numbers)}", spec, needed)
        return _Making(sequence, labels, self._sizes, made).begin([*prompt, tokens.id("start_acoustic_token")])

    def make(self, labels: Labels, seed: int, text: str = SENTENCE) -> SpeakerTokens:
        """Waits. Raises as ``begin``, and ``EngineError``."""
        found: list[SpeakerTokens | BistreamError] = []
        done = threading.Event()

        def made(result: SpeakerTokens | BistreamError) -> None:
            found.append(result)
            done.set()

        self.begin(labels, seed, made, text)
        done.wait()
        if isinstance(found[0], BistreamError):
            raise found[0]
        return found[0]


class _Making:
    """One voice; a ``TurnSink``."""

    def __init__(self, sequence: EngineSequence, labels: Labels, sizes: OneTableConfig, made: Made) -> None:
        self._sequence, self._labels, self._made = sequence, labels, made
        self._tokens = sizes.tokens
        self._space = TokenSpace.of(sizes.of_voices)
        self._firsts = [phase.start for phase in sizes.voice_phases]
        self._ids: list[int] = []  # in the order of the head's rows

    def begin(self, ids: Sequence[int]) -> Callable[[], None]:
        try:
            self._sequence.turn(ids, self._limits(ACOUSTIC_VALUES), self)
        except BaseException:
            self._sequence.close()
            raise
        return self._sequence.cancel

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self._ids += [self._space.speech_token(one) for one in ids]

    def on_end(self, result: TurnResult) -> None:
        """If this raised, nobody would be told."""
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
            return EngineError(result.error or SEQUENCE_FAILED_SENTENCE)
        pitch, speed, first_global = self._firsts
        codes = tuple(one - first_global for one in self._ids[ACOUSTIC_VALUES:])
        return SpeakerTokens(codes, self._labels, self._ids[0] - pitch, self._ids[1] - speed)

    def _limits(self, count: int) -> TurnLimits:
        return TurnLimits(count, forbidden=frozenset(self._space.specials))
