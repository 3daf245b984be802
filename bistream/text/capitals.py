"""Words in capitals are read as words unless they are spelled: a stage of the text preparation, for Latin letters alone.

``HELLO WORLD THIS IS`` becomes small letters; ``NASA``, ``API``, ``HTML``, ``VIII``, ``I`` and ``OK`` stay. A word of capitals is read as a
word if it has ``LONG`` letters, is one of the commonest short words, or stands among such words. A short one that is none of these is held
until the next word shows whether it stands among them, three of them in a row do; words without a vowel and Roman numbers never do.
A word that begins its sentence keeps its first capital.
"""

from __future__ import annotations

import re
from functools import lru_cache

from bistream.text.characters import RETRACT, Emit

LONG = 5
MANY_SHORT = 3  # short words in capitals after one another are a sentence in capitals
MAX_HELD_CHARS = 48  # as long as three short words and what may stand between them
_COMMON = frozenset(
    "ALL AND ANY ARE ASK BAD BE BEEN BEST BIG BOY BUT BUY BY CALL CAN COME DAD DAY DID DO DOES DOG DONE DOWN EACH EAT END EVEN EVER "
    "FEEL FEW FIND FIRE FOR FREE FROM FULL FUN GAVE GET GIVE GO GOES GOOD GOT HAD HALF HAND HAS HAVE HE HEAR HELP HER HERE HIGH HIM HIS "
    "HOLD HOME HOPE HOT HOW IF INTO IS ITS JOB JUST KEEP KIND KNOW LAST LATE LEFT LESS LET LIFE LIKE LINE LIVE LONG LOOK LOST LOVE LOW "
    "MADE MAKE MAN MANY ME MORE MOST MOVE MUCH MUST MY NAME NEED NEW NEXT NICE NO NOT NOTE NOW OF OFF OLD ON ONCE ONE ONLY OPEN OR OUR "
    "OUT OVER OWN PART PAY PLAY PUT READ REAL RED RUN SAID SALE SAW SAY SEE SEEN SEND SHE SHOW SIT SO SOME SOON STAY STEP STOP SUCH "
    "SURE TAKE TALK TELL TEN THAN THAT THE THEM THEN THEY THIS TIME TO TOO TOOK TOP TRUE TRY TURN TWO UNTO UP UPON USE USED VERY WAIT "
    "WALK WANT WAR WAS WAY WE WEEK WELL WENT WERE WHAT WHEN WHY WILL WISH WITH WON WORD WORK YEAR YES YET YOU YOUR ZERO".split()
)
_SPELLED = frozenset(
    "AI API APIS ASAP ATM CEO CFO CIA CIO CTO EPA ESA EU FAQ FBI FIFA GUI HIV IBM ID IMF IO IOS IP IPO IQ ISO JSON NASA "
    "NATO NBA NFL OECD OK OS RAM ROM SIM SUV UAE UFO UI UK UNO URI URL USA USB UV UX VIP WIFI WIMAX XAI YAML".split()
)
_VOWEL = re.compile("[AEIOUYÀ-ÆÈ-ÏÒ-ÖØ-Ý]")
_ROMAN = re.compile("M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_SENTENCE_ENDS = frozenset(".!?\u3002\uff01\uff1f")
_TRANSPARENT = frozenset(("", *" \"'()[]\u201c\u201d", RETRACT))  # do not change whether a sentence begins


class CapitalReader:
    """One text."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._word: list[tuple[str, int]] = []  # capitals, so far, of a word
        self._held: list[tuple[str, int]] = []  # short words in capitals that nothing has shown to be words, and what follows them
        self._begins: list[int] = []  # where these words begin in ``_held``
        self._is_passing = False  # in a word that has shown what it is
        self._is_loud = False  # the last word in capitals was read as one, and no other word came since
        self._begins_sentence = self._held_begins_sentence = True

    def feed(self, character: str, count: int) -> None:
        if self._is_passing:
            if _continues_word(character):
                self._pass(character, count)
                return
            self._is_passing = False
        if _is_capital(character) or (self._word and character == "'"):
            self._word.append((character, count))
            if len(self._held) + len(self._word) > MAX_HELD_CHARS:
                self._pass_word()
        elif _continues_word(character):
            self._pass_word()
            self._pass(character, count)
        else:
            self._end_word()
            self._separate(character, count)

    def finish(self, is_end: bool) -> None:
        self._end_word()
        self._let_go()
        self._is_passing = False

    # -- inside ------------------------------------------------------------------------------------------------------

    def _pass(self, character: str, count: int) -> None:
        if character.islower():
            self._is_loud = False
        self._emit(character, count)

    def _pass_word(self) -> None:
        """It is not a word in capitals, and so those before it stand alone."""
        self._let_go()
        self._give(self._word)
        self._word = []
        self._is_passing, self._begins_sentence = True, False

    def _separate(self, character: str, count: int) -> None:
        if self._held:
            self._held.append((character, count))
            if character in _SENTENCE_ENDS or len(self._held) > MAX_HELD_CHARS:
                self._let_go()
        else:
            self._emit(character, count)
        if character in _SENTENCE_ENDS:
            self._begins_sentence = True
        elif character not in _TRANSPARENT:
            self._begins_sentence = False

    def _end_word(self) -> None:
        if not self._word:
            return
        word, self._word = self._word, []
        kind = _kind("".join(character for character, _ in word))
        if kind == "short" and not self._is_loud:
            self._hold(word)
            return
        if kind == "word" or (kind == "short" and self._is_loud):
            self._is_loud = True
            self._let_go(as_words=True)
            self._give(_small(word, self._begins_sentence))
        elif self._held:  # a spelled one, or a single letter, says nothing about those before it
            self._held += word
        else:
            single = len(word) == 1 and word[0][0] == "A" and self._is_loud and not self._begins_sentence
            self._give([("a", word[0][1])] if single else word)
        self._begins_sentence = False

    def _hold(self, word: list[tuple[str, int]]) -> None:
        if not self._held:
            self._held_begins_sentence = self._begins_sentence
        self._begins.append(len(self._held))
        self._held += word
        self._begins_sentence = False
        if len(self._begins) == MANY_SHORT:
            self._is_loud = True
            self._let_go(as_words=True)

    def _let_go(self, as_words: bool = False) -> None:
        """Give out what is held; as_words: the short words among it were words."""
        held, self._held, begins, self._begins = self._held, [], self._begins, []
        if as_words:
            for begin in begins:
                end = begin + 1
                while end < len(held) and (_is_capital(held[end][0]) or held[end][0] == "'"):
                    end += 1
                held[begin:end] = _small(held[begin:end], self._held_begins_sentence and begin == 0)
        self._give(held)

    def _give(self, characters: list[tuple[str, int]]) -> None:
        for character, count in characters:
            self._emit(character, count)


def _small(word: list[tuple[str, int]], begins_sentence: bool) -> list[tuple[str, int]]:
    kept = 1 if begins_sentence or "".join(character for character, _ in word[:2]) == "I'" else 0
    return word[:kept] + [(character.lower(), count) for character, count in word[kept:]]


def _kind(word: str) -> str:
    """word: read as one. short: as those around it. spelled: stays."""
    letters = word.replace("'", "")
    if len(letters) < 2 or letters in _SPELLED or _VOWEL.search(letters) is None or _ROMAN.fullmatch(letters):
        return "spelled"
    return "word" if len(letters) >= LONG or letters in _COMMON or "'" in word.strip("'") else "short"


def _is_capital(character: str) -> bool:
    return "A" <= character <= "Z" or ("\u00c0" <= character < "\u0250" and _is_other_capital(character))


@lru_cache(maxsize=512)
def _is_other_capital(character: str) -> bool:
    return character.isupper() and len(character.lower()) == 1


def _continues_word(character: str) -> bool:
    return character.isalnum() or character == "_"
