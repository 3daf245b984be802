"""Incremental tokenizer: bytes in, in pieces; token ids out as soon as no continuation can change them. One per session.

The ids of a session depend on its whole text only, never on where it was cut. They equal ``TextTokenizer.encode`` of the
whole text, with one exception that bounds how long text is held back (``WINDOW_CHARS`` below). Used by
``text2token.text_session``. A piece passes these stages, each of which keeps only its undecided rest:

    bytes --UTF-8--> characters --special tokens--> plain text --NFC--> normalised text --pattern, BPE--> ids
          up to 3 bytes         up to 17 characters           one base with its marks    the undecided end

Before NFC ``preparation.py`` makes the plain text fit to be spoken, unless the session asked for its raw text. Ids then equal those of the
prepared text, and characters are still counted in the session's own text.

**Unfinished runs of letters.** The pre-tokenizer's pattern does not limit a match: a Chinese paragraph without punctuation is
one match, and speech must not wait for its end. Of a run of letters those tokens are taken that no continuation can change
(``certain_tokens.py``), and matching restarts after them: inside a run of letters the pattern finds the same end from anywhere.

**The bound.** Neither do white space and punctuation end by themselves, and a vocabulary may leave a run of letters undecided. So
a match is decided by at most ``WINDOW_CHARS`` normalised characters from its start. Where these do not decide it (the match, or
the white space around it, fills the window), the text is cut: the BPE tokens of the window's first match that end within its
first ``KEEP_CHARS`` characters are taken (at least one token), and matching restarts after them. Likewise, a base character with
more than ``WINDOW_CHARS`` combining marks is normalised in parts. Both rules depend on the text alone. So ids can differ from
``encode`` only where punctuation or white space has ``WINDOW_CHARS`` or more characters, or so many letters stay undecided (no
entry of Qwen2's vocabulary has as many), and there mostly at the cuts only, because these lie between BPE tokens.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from bistream.contract.refusals import not_utf8
from bistream.errors import InvalidInputError
from bistream.text.certain_tokens import Encoded
from bistream.text.characters import RETRACT
from bistream.text.markup import MarkupReader
from bistream.text.phonemes import token_of
from bistream.text.preparation import PreparedCharacter, TextPreparation
from bistream.text.special_tokens import MARKS
from bistream.text.text_ends import decided_pieces, is_complete, is_run_of_letters, starts_segment, whole_characters
from bistream.text.tokenizer import TextTokenizer

WINDOW_CHARS = 32
KEEP_CHARS = 16  # the rest of the window is context, so that a cut does not split a word


@dataclass(frozen=True)
class TextBreak:
    """The text before it ends, and silence follows, possibly of no length, and then speech at another rate.

    has_speech: whether the text from the break before on has something to speak.
    """

    silence_ms: int
    rate_percent: int
    has_speech: bool


@dataclass(frozen=True)
class TextToken:
    """end_char: characters of the session's text that the tokens up to and including this one cover completely."""

    id: int
    end_char: int


class TextIn:
    def __init__(self, tokenizer: TextTokenizer, preparation: TextPreparation | None = None, markup: MarkupReader | None = None) -> None:
        """preparation: of the text between special tokens, of this text alone; None: the text is spoken as written. markup: reads SSML;
        None: the text is none.

        has_speech: whether what has come so far (since the last break), and is not held back, has a letter, a digit, or a token that
        stands for a sound.
        """
        self.has_speech = False
        self._tokenizer = tokenizer
        self._preparation = preparation
        self._markup = markup
        self._begins_part = False  # no blank begins the text after a break
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._scanned = ""  # characters from the first possible start of a special token on
        self._segment = ""  # a base character and the following ones that may compose with it
        self._segment_source = 0  # characters of the session's text that _segment stands for
        self._normalized = ""  # normalised text whose tokens are not yet decided
        self._normalized_ends: list[int] = []  # per character of _normalized: characters of the session's text up to it
        self._num_segmented = 0  # characters of the session's text that have left _segment
        self._ending = ""  # up to two characters of the prepared text, the last ones
        self._end_char = 0  # of the last token
        self._error: InvalidInputError | None = None

    def read(self, piece: bytes, is_end: bool) -> list[TextToken | TextBreak]:
        """The tokens that this piece decides, at the end the remaining ones, and the breaks between them.

        Raises ``InvalidInputError`` once the bytes cannot become valid UTF-8, where the text ends inside a character, and for wrong SSML.
        """
        characters = self._decode(piece, final=is_end)
        return self._advance(characters, is_end) if self._markup is None else self._advance_in_markup(self._markup, characters, is_end)

    def _decode(self, piece: bytes, final: bool) -> str:
        if self._error is not None:
            raise self._error
        try:
            characters = self._decoder.decode(piece, final)
            open_bytes = self._decoder.getstate()[0]
            if open_bytes[:1] == b"\xed" and open_bytes[1:2] >= b"\xa0":  # a surrogate, which the decoder rejects one byte later
                raise UnicodeDecodeError("utf-8", open_bytes, 0, 2, "surrogate")
            return characters
        except UnicodeDecodeError:
            self._error = not_utf8(is_open=final)
            raise self._error from None

    def _advance_in_markup(self, markup: MarkupReader, characters: str, final: bool) -> list[TextToken | TextBreak]:
        found: list[TextToken | TextBreak] = []
        for one in markup.push(characters, final):
            if one.silence_ms is not None:
                self._finish_plain_text(found, is_end=False)
                if self._segment == " ":
                    self._retract()
                self._encode_normalized(found, closed=True)
                self._num_segmented += one.covered
                found.append(TextBreak(one.silence_ms, one.rate_percent, self.has_speech))
                self.has_speech, self._begins_part = False, True
            elif one.is_token:
                self._add_special(found, one.text, one.covered)
            elif self._preparation is None:
                self._add_character(one.text, one.covered)
            else:
                self._add_prepared(found, self._preparation.take(one.text, one.covered))
        if final:
            self._finish_plain_text(found, is_end=True)
        self._encode_normalized(found, closed=final)
        return found

    def _advance(self, characters: str, final: bool) -> list[TextToken | TextBreak]:
        tokens: list[TextToken | TextBreak] = []
        self._scanned += characters
        while True:
            index, special = self._tokenizer.find_special(self._scanned, final)
            self._add_plain_text(tokens, self._scanned[:index])
            self._scanned = self._scanned[index:]
            if special is None:
                break
            self._scanned = self._scanned[len(special) :]
            self._add_special(tokens, special, len(special))
        if final:
            self._finish_plain_text(tokens, is_end=True)
        self._encode_normalized(tokens, closed=final)
        return tokens

    def _add_special(self, tokens: list[TextToken | TextBreak], special: str, source_characters: int) -> None:
        self._finish_plain_text(tokens, is_end=False)
        self._take_special(tokens, special, source_characters)

    def _take_special(self, tokens: list[TextToken | TextBreak], special: str, source_characters: int) -> None:
        self._encode_normalized(tokens, closed=True)
        self._num_segmented += source_characters
        self._end_char = self._num_segmented
        self.has_speech |= special not in MARKS
        self._begins_part = False
        tokens.append(TextToken(self._tokenizer.special_tokens[special], self._end_char))

    def _add_plain_text(self, tokens: list[TextToken | TextBreak], characters: str) -> None:
        if self._preparation is None:
            for character in characters:
                self._add_character(character, 1)
        else:
            self._add_prepared(tokens, self._preparation.push(characters))

    def _finish_plain_text(self, tokens: list[TextToken | TextBreak], is_end: bool) -> None:
        if self._preparation is not None:
            rest = self._preparation.finish(is_end)
            retracts = is_end and bool(rest) and rest[-1].character == RETRACT
            self._add_prepared(tokens, rest[:-1] if retracts else rest)
            if retracts:
                self._retract()

    def _add_prepared(self, tokens: list[TextToken | TextBreak], characters: list[PreparedCharacter]) -> None:
        for one in characters:
            if one.character == RETRACT:
                if self._ending[:1].isalnum():
                    self._retract()
            elif one.character and (phoneme := token_of(one.character, self._tokenizer.spoken_tokens)) is not None:
                self._take_special(tokens, phoneme, one.source_characters)
            elif one.character:
                self._add_character(one.character, one.source_characters)
            elif self._segment:
                self._segment_source += one.source_characters
            else:
                self._num_segmented += one.source_characters

    def _retract(self) -> None:
        """A blank or full stop that ends what has come: it is undecided yet. What it covers is covered by the characters after it."""
        if self._segment in (" ", "."):
            self._num_segmented += self._segment_source
            self._segment, self._segment_source = "", 0
            self._ending = self._ending[:-1]

    def _add_character(self, character: str, source_characters: int) -> None:
        if self._begins_part and character == " ":
            self._num_segmented += source_characters
            return
        self._begins_part = False
        if self._segment and (starts_segment(character) or len(self._segment) == WINDOW_CHARS):
            self._close_segment()
        self.has_speech = self.has_speech or character.isalnum()
        self._ending = self._ending[-1:] + character
        self._segment += character
        self._segment_source += source_characters
        if is_complete(self._segment):
            self._close_segment()

    def _close_segment(self) -> None:
        normalized = self._tokenizer.normalize(self._segment)
        start = self._num_segmented
        self._num_segmented += self._segment_source
        self._segment_source = 0
        self._normalized += normalized
        # Normalised characters cannot be mapped to parts of the segment, so only the last one counts as covering it.
        self._normalized_ends += [start] * (len(normalized) - 1) + [self._num_segmented]
        self._segment = ""

    def _encode_normalized(self, tokens: list[TextToken | TextBreak], closed: bool) -> None:
        """Move the decided part of ``_normalized`` to ``tokens``. closed: the plain text ends here."""
        if closed and self._segment:
            self._close_segment()
        # The base of the open segment may still change by composition, but not its class (letter, number, space, other), so it
        # already determines where the preceding match ends.
        base = self._tokenizer.normalize(self._segment)[:1]
        while self._normalized:
            is_full = len(self._normalized) >= WINDOW_CHARS
            window = (self._normalized + base)[:WINDOW_CHARS]
            pieces = self._tokenizer.pre_tokenize(window)
            decided = pieces if closed and not is_full else decided_pieces(window, pieces)
            if decided:
                for symbols, _ in decided:
                    self._take(tokens, self._tokenizer.encode_piece(symbols))
            elif certain := self._certain(window, pieces[0]):
                self._take(tokens, certain)
            elif is_full:
                self._take(tokens, self._keep(window, self._tokenizer.encode_piece(pieces[0][0])))
            else:
                break

    def _certain(self, window: str, piece: tuple[str, int]) -> list[Encoded]:
        """The tokens at the start of a window's first match that no further text can change. They end with a character."""
        symbols, end = piece
        if not is_run_of_letters(window[:end]):
            return []
        known = self._normalized[:end]  # the open segment's base, the window's last character, may still change
        certain = self._tokenizer.encode_open_piece(symbols[: len(known.encode("utf-8"))])
        return whole_characters(known, certain, len(known))

    def _keep(self, window: str, encoded: list[Encoded]) -> list[Encoded]:
        """The tokens of a window's first match before the cut (see the bound above). The cut never splits a character."""
        return whole_characters(window, encoded, KEEP_CHARS)

    def _take(self, tokens: list[TextToken | TextBreak], encoded: list[Encoded]) -> None:
        """Append tokens and remove the characters that they cover from the start of ``_normalized``."""
        num_chars = open_bytes = 0
        for token_id, num_bytes in encoded:
            open_bytes += num_bytes
            while open_bytes and open_bytes >= (size := len(self._normalized[num_chars].encode("utf-8"))):
                open_bytes -= size
                self._end_char = self._normalized_ends[num_chars]
                num_chars += 1
            tokens.append(TextToken(token_id, self._end_char))
        assert open_bytes == 0, "the tokens of a piece end inside a character"
        self._normalized = self._normalized[num_chars:]
        self._normalized_ends = self._normalized_ends[num_chars:]
