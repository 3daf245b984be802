"""``bistream doctor --align``: speaks some sentences and finds the attention head that follows the text, without a recogniser.

Each sentence is spoken in both layouts, all of them at once, without a voice: a voice changes how a head looks less than a word does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bistream.checkpoints.alignment import KEY, write_head
from bistream.checkpoints.files import family_of
from bistream.commands.waiting import Waiting
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.gpu.device import resolve_device
from bistream.text.prompt_form import make_prompt_form
from bistream.text2token.engine import EngineSequence, TokenSpace, TurnEnd, TurnResult
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.head_scores import HeadScore, best_head, scores_of, text_weights
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import TokenLayout
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.requested_sampling import make_sampling_spec
from bistream.text2token.weights import load_weights
from bistream.types import GenerationOptions

SENTENCES = (
    "The old man opened the window and looked at the quiet street below.",
    "Seven ships left the harbour before the storm reached the northern coast.",
    "She put the letter on the table and went out without saying a word.",
    "Our teacher said that the river had been much wider in those days.",
)
MOST_IDS = 512  # of a sequence: three times what a sentence usually takes


@dataclass(eq=False)
class Speaker:
    """Speaks one text in one layout; a ``TurnSink``. ``ended``: set with the last turn."""

    layout: TokenLayout
    sequence: EngineSequence
    ended: threading.Event = field(default_factory=threading.Event)
    error: str = ""
    _ids: list[int] = field(default_factory=list)

    def go_on(self) -> None:
        """Begin the next turn, or end."""
        turn = None if self.error else self.layout.next_turn()
        if turn is None:
            self.ended.set()
        else:
            self._ids = []
            self.sequence.turn(turn.append_ids, turn.limits, self)

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self._ids += ids

    def on_end(self, result: TurnResult) -> None:
        try:
            self.layout.turn_ended(self._ids, result)
            self.error = (result.error or "The language model stopped.") if result.end in (TurnEnd.ERROR, TurnEnd.CANCELLED) else ""
            self.go_on()
        except BistreamError as error:
            self.error = error.sentence
            self.ended.set()


def find_head(config: RuntimeConfig) -> HeadScore:
    """The head of ``config.model_dir`` that follows the text best, whether well or not. Raises ``BistreamError``."""
    if family_of(config.model_dir).has_codec:
        raise InvalidInputError("--align is for CosyVoice's checkpoints; Spark-TTS's positions are estimated from its pace.")
    sessions = 2 * len(SENTENCES)
    plain = replace(config, dtype="float32", kernels="plain", text_position_head="none")
    plain = replace(plain, max_sessions=sessions, max_session_tokens=MOST_IDS, kv_cache_tokens=sessions * MOST_IDS)
    with Waiting("1 of 2: speaking") as waiting:
        parts = load_parts(plain)
        try:
            instruction = parts.tokenizer.encode(make_prompt_form(parts.family.default_instruction, "", "").instruction)
            kinds = _spoken(parts, instruction)
        finally:
            parts.close()
        waiting.goes_on("2 of 2: comparing all heads")
        device = resolve_device(config.device)
        model = Qwen2Model(parts.sizes, load_weights(config.model_dir, parts.sizes, device, torch.float32))
        scores = [[scores_of(text_weights(model, ids), len(instruction)) for ids in each] for each in kinds]
    return best_head(scores, parts.sizes.num_attention_heads)


def _spoken(parts: LanguageModelParts, instruction: Sequence[int]) -> list[list[list[int]]]:
    """For each layout the ids of every sentence and its speech."""
    space, longest = TokenSpace.of(parts.sizes), parts.engine.longest_sequence
    kinds: list[list[Speaker]] = [[], []]
    for number, text in enumerate(SENTENCES):
        layouts: tuple[TokenLayout, ...] = (
            Interleaver(space, (), (), mix_ratio=parts.sizes.mix_ratio, max_ids=longest, instruction_ids=instruction),
            UnistreamLayout(space, instruction, (), max_ids=longest),
        )
        for kind, layout in enumerate(layouts):
            layout.push_text(parts.tokenizer.encode(text))
            layout.end_text()
            spec = make_sampling_spec(GenerationOptions(seed=number), parts.sizes)
            kinds[kind].append(Speaker(layout, parts.engine.open(f"align-{kind}-{number}", spec, longest)))
    everyone = [speaker for kind in kinds for speaker in kind]
    for speaker in everyone:
        speaker.go_on()
    for speaker in everyone:
        speaker.ended.wait()
        if speaker.error:
            raise EngineError(speaker.error)
    return [[list(speaker.layout.ledger) for speaker in kind] for kind in kinds]


def report(score: HeadScore, path: Path) -> str:
    """Write ``path``, which says which head is to be read, and tell it. Raises ``InvalidInputError``."""
    layer, head = score.head
    measured = f"monotony {score.monotony:.2f}, coverage {score.coverage:.2f}, peak {score.peak:.2f}"
    try:
        if score.follows:
            write_head(path, score.head, {name: round(getattr(score, name), 3) for name in ("monotony", "coverage", "peak")})
        else:
            write_head(path, None)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written ({error}); choose another --out.") from None
    if score.follows:
        return f"layer {layer}, head {head} follows the text ({measured}); {path} says so to the server, as does {KEY}={layer},{head}"
    return (
        f"no head follows the text (the best, layer {layer}, head {head}: {measured}); {path} says so, and text_position is estimated from "
        "the pace of the voice"
    )
