"""Checks a client's requests before anything is computed. Pure; called by the orchestrator with the values of one request."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from bistream.checkpoints.model_card import ModelCard
from bistream.config import RuntimeConfig
from bistream.contract.checks import SSML, check_instruction_length, check_speed, check_text_length, count_characters, is_instruction
from bistream.contract.codec import check_values, flat_values
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.refusals import has_no_speed, marks_nothing, not_utf8, takes_no_labels, text_has_ended, text_is_empty
from bistream.errors import InvalidInputError
from bistream.sessions.playback import SpokenEffort
from bistream.sessions.ports import BistreamRequest, SessionKey
from bistream.text.markup import MarkupReader, blanked, plain
from bistream.text.scripts import ScriptGuard
from bistream.text.speakable import SpeakableText
from bistream.text2token.one_table.prompts import Labels
from bistream.types import AudioOptions, FloatArray, GenerationOptions, VoicePrompt
from bistream.voice.reference_audio import check_reference_audio

DEFAULT_CARD = ModelCard()
MakeReader = Callable[[], MarkupReader]


class TextLedger:
    """Counts and checks the text of one session. A refused piece leaves it as it was."""

    def __init__(self, max_chars: int, languages: frozenset[str] = frozenset(), markup: MakeReader | None = None) -> None:
        """languages: of the checkpoint, as in ``ModelCard``. markup: reads SSML, which is checked, and of which tags say nothing; None: the
        text is none."""
        self._max_chars = max_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self.characters = 0
        self.speakable_characters = 0  # up to the last piece that brought something to speak
        self._speakable = SpeakableText()
        self._scripts = ScriptGuard(languages)
        self.ended = False
        self._make_markup, self._markup = markup, None if markup is None else markup()
        self._accepted = ""  # of SSML
        self.effort = SpokenEffort()  # of what was accepted

    def accept(self, piece: bytes, is_end: bool) -> bool:
        """Take one piece of UTF-8, cut anywhere. Whether it brings something to speak. Raises ``InvalidInputError``."""
        if self.ended:
            raise text_has_ended()
        state = self._decoder.getstate()
        speakable, scripts = self._speakable.copy(), self._scripts.copy()
        try:
            came = self._decode(piece, is_end)
            check_text_length(self.characters + count_characters(piece), self._max_chars)
            said, shown = self._read(came, is_end)
            is_speakable = speakable.push(said, is_end)
            scripts.push(said, is_end)
            if is_end and not self.characters and not piece:
                raise text_is_empty()
        except InvalidInputError:
            self._decoder.setstate(state)
            self._restore_markup()
            raise
        if self._markup is not None:
            self._accepted += came
        self.characters += count_characters(piece)
        self._speakable, self._scripts = speakable, scripts
        if is_speakable:
            self.speakable_characters = self.characters
        self.effort.push(shown)
        self.ended = is_end
        return is_speakable

    def _read(self, came: str, is_end: bool) -> tuple[str, str]:
        """What it says, and the same with all characters of the markup, which say nothing."""
        if self._markup is None:
            return came, came
        marked = self._markup.push(came, is_end)
        return plain(marked), blanked(marked)

    def _restore_markup(self) -> None:
        if self._make_markup is not None:
            self._markup = self._make_markup()
            self._markup.push(self._accepted, is_end=False)

    def _decode(self, piece: bytes, is_end: bool) -> str:
        try:
            return self._decoder.decode(piece, final=is_end)
        except UnicodeDecodeError:
            raise not_utf8(is_open=is_end and self._is_open(piece)) from None

    def _is_open(self, piece: bytes) -> bool:
        """Whether more bytes could still make ``piece`` valid (the decoder keeps its state on an error)."""
        try:
            self._decoder.decode(piece, final=False)
        except UnicodeDecodeError:
            return False
        return True


@dataclass(frozen=True)
class SessionStart:
    """A checked first request.

    key: the client's id and secret; ``None`` for a session of a single request. reference_wav: float32 [N] at 16 kHz, checked and cut to
    its true length, with its transcript (empty: none); without it, speaker_id names a registered voice, reference_hash one that was heard
    before, or labels and the seed make one. voice: already found by that hash (``Voices.find``). offline: the flow's whole-utterance path.
    is_cross_lingual: see ``voice/manner.py``. audio: for token2wav. source_wav: float32 [N] at 16 kHz, checked and cut; its words are
    spoken, and there is no text."""

    key: SessionKey | None
    text: bytes
    is_end: bool
    reference_wav: FloatArray | None
    reference_text: str
    speaker_id: str | None
    options: GenerationOptions
    speed: float
    offline: bool
    reference_hash: str | None = None
    voice: VoicePrompt | None = None
    is_cross_lingual: bool = False
    audio: AudioOptions = AudioOptions()
    source_wav: FloatArray | None = None
    labels: Labels | None = None


def check_start(request: BistreamRequest, config: RuntimeConfig, card: ModelCard = DEFAULT_CARD) -> SessionStart:
    """Raise ``InvalidInputError`` for anything wrong with the request except its text (``TextLedger``) and an unknown speaker."""
    check_values(COSYVOICE2_BISTREAM, request)
    if request.session_id is None and not request.is_end:
        raise InvalidInputError("session_id is missing; send one with every piece, or the whole text with is_end true.")
    if request.is_offline and not request.is_end:
        raise InvalidInputError("is_offline needs the whole text in the first request; send is_end true with all of it.")
    _check_speed(request, card)
    _check_hash(request)
    if request.is_marked and config.watermark == "off":
        raise marks_nothing()
    labels = _check_labels(request, card)
    speaker_id = None if labels is not None else _check_speaker(request, config)
    reference_wav, reference_text = (None, "") if request.reference_wav is None else _check_reference(request, config)
    return SessionStart(
        key=request.key,
        text=request.target_text or b"",
        is_end=request.is_end,
        reference_wav=reference_wav,
        reference_text=reference_text,
        speaker_id=speaker_id,
        options=replace(request.options, instruct_text=_check_instruction(request, config, card)),
        speed=1.0 if request.speed is None else request.speed,
        offline=request.is_offline,
        reference_hash=request.reference_hash,
        is_cross_lingual=request.is_cross_lingual,
        audio=AudioOptions(request.options.seed, request.is_marked),
        source_wav=_check_source(request, config),
        labels=labels,
    )


def ledger_of(start: SessionStart, config: RuntimeConfig, card: ModelCard, phonemes: frozenset[str]) -> TextLedger:
    """Of a session's text, which is still empty. phonemes: special tokens of the model."""
    markup = partial(MarkupReader, phonemes, card.has_speed and not start.offline) if start.options.text_type == SSML else None
    return TextLedger(config.max_text_chars, card.languages, markup)


def check_append(request: BistreamRequest, card: ModelCard = DEFAULT_CARD) -> None:
    """Raise ``InvalidInputError`` for an append with inputs that only a first request may have, or with a wrong speed."""
    _check_speed(request, card)
    fields = COSYVOICE2_BISTREAM.by_name
    for name, value in flat_values(request).items():
        if name in fields and fields[name].is_start_only and fields[name].says(value):
            raise InvalidInputError(f"{name} belongs to the first request of a session; send later pieces without it.")


def _check_hash(request: BistreamRequest) -> None:
    if request.reference_hash is None:
        return
    if request.reference_wav is None and request.reference_text is not None:
        raise InvalidInputError("reference_hash stands for the transcript too; send reference_text only together with reference_wav.")


def _check_labels(request: BistreamRequest, card: ModelCard) -> Labels | None:
    """None: the voice comes from elsewhere."""
    given = [name for name in ("gender", "pitch", "speaking_rate") if getattr(request, name) is not None]
    if not given:
        return None
    if not card.takes_labels:
        raise takes_no_labels()
    for name in ("reference_wav", "reference_hash", "speaker_id"):
        if getattr(request, name) is not None:
            raise InvalidInputError(f"The request has both {name} and {given[0]}; send a voice, or the labels of one to be made.")
    if request.gender is None:
        raise InvalidInputError(f"{given[0]} describes a voice to be made, which needs a gender; send gender female or male too.")
    return Labels.of(request.gender, request.pitch, request.speaking_rate)


def _check_speaker(request: BistreamRequest, config: RuntimeConfig) -> str | None:
    """The registered voice to use; ``None`` if the request has a recording or the hash of one."""
    if request.speaker_id is not None:
        for name in ("reference_wav", "reference_hash"):
            if getattr(request, name) is not None:
                raise InvalidInputError(f"The request has both {name} and speaker_id; send one of them.")
        return request.speaker_id
    if request.reference_wav is not None or request.reference_hash is not None:
        return None
    if not config.default_speaker_id:
        raise InvalidInputError("The voice is missing; send reference_wav with reference_text, or a speaker_id.")
    return config.default_speaker_id


def _check_reference(request: BistreamRequest, config: RuntimeConfig) -> tuple[FloatArray, str]:
    assert request.reference_wav is not None, "called with a recording only"
    text = request.reference_text or ""
    if request.reference_text is not None and not text.strip():
        raise InvalidInputError(
            "reference_text is empty; send the transcript of reference_wav, or leave reference_text out to speak cross-lingually."
        )
    return check_reference_audio(request.reference_wav, request.reference_wav_len, config), text


def _check_instruction(request: BistreamRequest, config: RuntimeConfig, card: ModelCard) -> str:
    text = _instruction(request)
    if text and not card.can_be_instructed:
        raise InvalidInputError("This checkpoint takes no instructions and would read them aloud; leave instruct_text out.")
    check_instruction_length(len(text), config.max_text_chars)
    return text


def _instruction(request: BistreamRequest) -> str:
    """Empty for none."""
    text = request.options.instruct_text
    return text if is_instruction(text) else ""


def _check_source(request: BistreamRequest, config: RuntimeConfig) -> FloatArray | None:
    if request.source_wav is None:
        return None
    if request.target_text or _instruction(request):
        raise InvalidInputError("source_wav brings the words and how they are spoken; leave target_text and instruct_text out.")
    if not request.is_end:
        raise InvalidInputError("source_wav is sent whole, in one request; send it with is_end true.")
    return check_reference_audio(request.source_wav, request.source_wav_len, config, name="source_wav")


def _check_speed(request: BistreamRequest, card: ModelCard) -> None:
    if request.speed is None:
        return
    check_speed(request.speed)
    if request.speed != 1.0 and not card.has_speed:
        raise has_no_speed()
