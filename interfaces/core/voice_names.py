"""Names that the vendors' clients know as built-in voices: they speak with the default voice here, and no upload may have one. Pure."""

from __future__ import annotations

import re
import unicodedata

OPENAI_VOICES = ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse")
# By the form of their names: ElevenLabs', Cartesia's, Deepgram's and DashScope's.
_BY_FORM = re.compile(
    r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)[A-Za-z0-9]{20}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(aura|flux)(-[a-z0-9]+)+|loo?ng[a-z]+(_v\d)?"
)
_VOICE_ID = re.compile(r"voice_[0-9a-f]{32}")
# ElevenLabs' premade voices by name, as older packages and examples ask for them, and those of DashScope without a common form.
_BY_NAME = frozenset(
    """
    adam alice antoni aria arnold bella bill brian callum charlie charlotte chris daniel domi dorothy drew elli emily ethan fin freya george
    gigi giovanni glinda grace harry james jeremy jessica jessie joseph josh laura liam lily matilda michael mimi nicole patrick paul rachel
    river roger sam sarah serena thomas will
    cherry chelsie dylan jada sunny libai_v2
    """.split()
)


def is_vendors(name: str) -> bool:
    """Whether clients send this name without asking for a certain voice of ours."""
    return name in OPENAI_VOICES or _BY_FORM.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    """Whether an upload may not have it: what a vendor calls a voice, however it is written, and the form of our own ids."""
    plain = plain_name(name)
    return is_vendors(name) or is_vendors(plain) or plain in _BY_NAME or _VOICE_ID.fullmatch(plain) is not None


def plain_name(name: str) -> str:
    """Names that look alike are equal: without case, widths and accents that Unicode knows as such."""
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    return "".join(character for character in decomposed if not unicodedata.combining(character)).strip()
