"""The language model's input in each manner of speaking, from a client's request to the ids that the engine is fed.

The expected ids are put together here from what upstream's front end (``cosyvoice/cli/frontend.py``) gives the model: prompt text and
prompt speech for a voice with its transcript, neither for cross-lingual speech and preset voices, the instruction as prompt text
without prompt speech for ``inference_instruct2``; and from the layouts of ``cosyvoice/llm/llm.py``. CosyVoice3 has an instruction before
all of that: its callers write the default one, and a wish behind it, themselves (``example.py``, ``cosyvoice/utils/common.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bistream.checkpoints.config import LanguageModelConfig
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.family import Family
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import TokenSpace
from bistream.text2token.factory import LanguageModelParts
from bistream.text2token.interleave import Interleaver
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.voice.build import make_voice_prompt
from bistream.voice.registry import VoiceRegistry
from scripts._tokenizer_files import write_tokenizer_files
from tests.fakes import ScriptedEngine, TurnView
from tests.parity.reference_layouts import ReferenceInterleaver
from tests.unit.sessions.fakes import REFERENCE, append_request, start_request
from tests.unit.sessions.house import CONFIG, House
from tests.unit.text2token import tiny
from tests.unit.text2token.test_service import Mailbox

TEXT = "In the <strong>end</strong> he laughed [laughter] and went home."
TRANSCRIPT = "What she said in it."
INSTRUCTION = "用四川话说这句话"
END = "<|endofprompt|>"
RECORDED = {"reference_wav": REFERENCE}
NO_RECORDING = {"reference_wav": None, "reference_text": None}
CODES = list(range(25))  # of ``FakeVoicePort`` for a second


@dataclass(frozen=True)
class Form:
    """What upstream's front end gives the language model for a request: text to encode as prompt text, and codes."""

    request: dict[str, Any]
    prompt_text: str = ""
    prompt_codes: Sequence[int] = ()
    is_instruction: bool = False


FORMS = {
    "zero shot": Form({**RECORDED, "reference_text": TRANSCRIPT}, TRANSCRIPT, CODES),
    "cross-lingual": Form({**RECORDED, "reference_text": None}),
    "cross-lingual with a transcript": Form({**RECORDED, "reference_text": TRANSCRIPT, "is_cross_lingual": True}),
    "instruct": Form({**RECORDED, "reference_text": None, "instruct_text": f"{INSTRUCTION}{END}"}, INSTRUCTION + END, is_instruction=True),
    "instruct without the mark": Form(
        {**RECORDED, "reference_text": None, "instruct_text": INSTRUCTION}, INSTRUCTION + END, is_instruction=True
    ),
    "instruct with a transcript": Form(
        {**RECORDED, "reference_text": TRANSCRIPT, "instruct_text": INSTRUCTION}, INSTRUCTION + END, is_instruction=True
    ),
    "registered voice": Form({**NO_RECORDING, "speaker_id": "anna"}, "Anna spoke.", range(10, 42)),
    "registered voice, cross-lingual": Form({**NO_RECORDING, "speaker_id": "anna", "is_cross_lingual": True}),
    "registered voice, instruct": Form(
        {**NO_RECORDING, "speaker_id": "anna", "instruct_text": "Happily."}, f"Happily.{END}", is_instruction=True
    ),
    "registered without a transcript": Form({**NO_RECORDING, "speaker_id": "mute"}),
    "an embedding alone": Form({**NO_RECORDING, "speaker_id": "fixed"}),
    "an embedding alone, instruct": Form(
        {**NO_RECORDING, "speaker_id": "fixed", "instruct_text": "Happily."}, f"Happily.{END}", is_instruction=True
    ),
}


@dataclass(frozen=True)
class Side:
    """One family's language model."""

    family: Family
    sizes: LanguageModelConfig
    space: TokenSpace
    tokenizer: TextTokenizer

    def split(self, form: Form) -> tuple[str, str]:
        """Instruction and transcript: what upstream's front end is given."""
        default = self.family.default_instruction
        if not default:
            return (form.prompt_text, "") if form.is_instruction else ("", form.prompt_text)
        if not form.is_instruction:
            return default + END, form.prompt_text
        is_complete = END in form.request["instruct_text"]  # as upstream's callers write it
        return (form.prompt_text if is_complete else f"{default} {form.prompt_text}"), ""

    def speech_ids(self, codes: Sequence[int]) -> list[int]:
        return [self.space.speech_offset + code for code in codes]

    def script(self, view: TurnView) -> Iterator[int]:
        """Counts, and proposes eos after 20 ids where that is allowed."""
        for number in range(10_000):
            if number == 20:
                yield self.space.eos
            yield self.space.speech_offset + 60 + number % 50  # no silence, which CosyVoice3 shortens


@pytest.fixture(scope="module", params=[COSYVOICE2, COSYVOICE3], ids=lambda family: family.name)
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Side:
    family: Family = request.param
    sizes = replace(tiny.CONFIG, text_vocab_size=900, rows=family.rows, head_has_bias=family.head_has_bias)
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / family.yaml_names[0]).touch()
    write_tokenizer_files(directory, 500)
    return Side(family, sizes, TokenSpace.of(sizes), TextTokenizer.from_model_dir(directory))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    voices: Path = tmp_path_factory.mktemp("voices")
    registry, embedding = VoiceRegistry(voices), np.ones(192, np.float32)
    recorded = (np.arange(10, 42, dtype=np.int32), np.zeros((64, 80), np.float32), embedding)
    registry.save("anna", make_voice_prompt("Anna spoke.", *recorded))
    registry.save("mute", make_voice_prompt("", *recorded))
    registry.save("fixed", make_voice_prompt("", np.zeros(0, np.int32), np.zeros((0, 80), np.float32), embedding))
    house = House(replace(CONFIG, voices_dir=str(voices)))
    yield house
    house.orchestrator.close()


def start_of(house: House, form: Form, in_pieces: bool) -> LanguageModelStart:
    """What the language model is sent for a request."""
    sender = house.send(start_request("" if in_pieces else TEXT, **{"is_end": not in_pieces, **form.request}))
    if in_pieces:
        house.send(append_request(TEXT, is_end=True))
    assert sender.wait() is None
    return house.models.language_model.starts[-1]


def fed(side: Side, start: LanguageModelStart, pieces: Sequence[str]) -> tuple[list[int], list[tuple[int, ...]]]:
    """All ids of the sequence, and those appended by each turn."""
    engine = ScriptedEngine(side.space, side.script)
    parts = LanguageModelParts(side.tokenizer, side.sizes, engine, family=side.family)
    service = SpeechTokenService(CONFIG, parts=parts, run_timer=False)
    codes = np.asarray(start.prompt_speech_tokens, np.int32) % side.space.speech_token_size
    mailbox = Mailbox()
    service.start(replace(start, prompt_speech_tokens=codes), mailbox)
    for number, piece in enumerate(pieces, 1):
        service.append(start.session_id, piece.encode(), number == len(pieces))
    assert mailbox.ended.is_set()
    (sequence,) = engine.opened
    service.close()
    return sequence.sequence, [ids for ids, _ in sequence.turns_started]


@pytest.mark.parametrize("name", FORMS)
def test_the_whole_text_at_once(house: House, side: Side, name: str) -> None:
    """``inference``: sos, prompt text and text, task, prompt speech."""
    form = FORMS[name]
    _, turns = fed(side, start_of(house, form, in_pieces=False), ())
    text = [token_id for part in (*side.split(form), TEXT) for token_id in side.tokenizer.encode(part)]
    assert turns == [tuple([side.space.sos, *text, side.space.task, *side.speech_ids(form.prompt_codes)])]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [1, 7, 100])
def test_text_in_pieces(house: House, side: Side, name: str, size: int) -> None:
    """Blocks of 5 text and 15 speech ids; the rest of the text, task. An instruction stands before the blocks."""
    form = FORMS[name]
    pieces = [TEXT[begin : begin + size] for begin in range(0, len(TEXT), size)]
    space = side.space
    sequence, turns = fed(side, start_of(house, form, in_pieces=True), pieces)
    lead, transcript, own = (side.tokenizer.encode(part) for part in (*side.split(form), TEXT))
    text = transcript + own
    speech: list[int | None] = [*side.speech_ids(form.prompt_codes), *[None] * 1000]  # None: decoded
    expected: list[int | None] = [space.sos, *lead]
    while len(text) >= 5:
        expected, text, speech = [*expected, *text[:5], *speech[:15]], text[5:], speech[15:]
    expected += [*text, space.task]
    assert len(sequence) >= len(expected)
    wrong = [at for at, wanted in enumerate(expected) if wanted is not None and sequence[at] != wanted]
    assert wrong == []
    assert all(space.is_speech(sequence[at]) for at, wanted in enumerate(expected) if wanted is None)
    decoded = expected.count(None)
    assert sum(len(ids) for ids in turns) == len(expected) - decoded


def test_nothing_is_decoded_before_there_is_text(house: House, side: Side) -> None:
    """Unlike upstream's own order, where five ids of an instruction are a block that is spoken."""
    start, space = start_of(house, FORMS["instruct"], in_pieces=True), side.space
    ids = side.tokenizer.encode(INSTRUCTION + END)
    assert len(ids) >= 5
    ours, upstream = Interleaver(space, [], [], instruction_ids=ids), ReferenceInterleaver(space, ids, [])
    for layout in (ours, upstream):
        layout.push_text([1])
    assert ours.next_turn() is None
    turn = upstream.next_turn()
    assert turn is not None and turn.append_ids == (space.sos, *ids[:5])
    assert (start.options.instruct_text, start.prompt_text, len(start.prompt_speech_tokens)) == (INSTRUCTION + END, "", 0)
