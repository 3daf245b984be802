"""SSML is read whatever the cuts: what it says is text, what it marks up is silence, and nothing of it is a special token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.families.cosyvoice2 import ADDED_TOKENS
from bistream.text.markup import MarkedText, MarkupReader, blanked
from bistream.text.preparation import TextPreparation
from bistream.text.text_in import TextBreak, TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer
from tests.unit.cuts import pieces_of

PLAIN = st.lists(st.sampled_from(("hello", "World", " ", " ", ".", ",", "5", "\u4f60\u597d", "]", ">", "'", "\n", "e\u0301"))).map("".join)
BREAK = st.integers(1, 10_000).map(lambda ms: f'<break time="{ms}ms"/>')


def element(name: str, attributes: str = "") -> st.SearchStrategy[str]:
    return st.lists(st.one_of(PLAIN, BREAK), max_size=3).map(lambda inner: f"<{name}{attributes}>{''.join(inner)}</{name}>")


ENTITY = st.sampled_from(("&amp;", "&lt;", "&#65;", "&#x4f60;", "<!-- > -->", "<![CDATA[<b>]]>"))
SAY_AS = element("say-as", ' interpret-as="characters"')
PIECES = st.one_of(
    PLAIN, BREAK, ENTITY, element("p"), element("s"), element("sub", ' alias="a b"'), SAY_AS, element("prosody", ' rate="80%"')
)
DECLARED = '<?xml version="1.0"?>'
SSML = (
    st.lists(PIECES, max_size=8)
    .map("".join)
    .flatmap(lambda text: st.sampled_from((text, f'<speak version="1.1">{text}</speak>', f"{DECLARED}<speak>{text}</speak>")))
)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def read(text: str, cuts: list[int] | None = None) -> list[MarkedText]:
    reader = MarkupReader()
    return [one for piece in pieces_of(text, cuts or []) for one in reader.push(piece, is_end=False)] + reader.push("", is_end=True)


def told(text: str) -> str:
    """A break as its silence, and the rate behind it where that is not the usual one."""

    def shown(one: MarkedText) -> str:
        rate = "" if one.rate_percent == 100 else f" {one.rate_percent} %"
        return one.text if one.silence_ms is None else f"[{one.silence_ms}{rate}]"

    return "".join(map(shown, read(text)))


@settings(max_examples=60)
@given(text=SSML, cuts=CUTS)
def test_any_cut_says_the_same(text: str, cuts: list[int]) -> None:
    whole = read(text)
    assert read(text, cuts) == whole
    assert sum(one.covered for one in whole) == len(blanked(whole)) <= len(text)


@settings(max_examples=40)
@given(text=SSML, cuts=CUTS)
def test_any_cut_gives_the_same_ids_breaks_and_positions(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> None:
    def found(parts: list[str]) -> list[TextToken | TextBreak]:
        text_in = TextIn(tokenizer, TextPreparation(), MarkupReader())
        return [one for part in parts for one in text_in.read(part.encode(), is_end=False)] + text_in.read(b"", is_end=True)

    whole = found([text])
    assert found(pieces_of(text, cuts)) == whole
    ends = [one.end_char for one in whole if isinstance(one, TextToken)]
    assert ends == sorted(ends) and all(0 <= end <= len(text) for end in ends)
    assert [one.silence_ms for one in whole if isinstance(one, TextBreak)] == [
        one.silence_ms for one in read(text) if one.silence_ms is not None
    ]


@settings(max_examples=30)
@given(words=st.lists(st.sampled_from("the quick Brown fox, jumps. over I it's dogs!".split()), min_size=1, max_size=12))
def test_text_without_markup_is_the_plain_text_and_leaves_as_early(tokenizer: TextTokenizer, words: list[str]) -> None:
    plain, marked = TextIn(tokenizer, TextPreparation()), TextIn(tokenizer, TextPreparation(), MarkupReader())
    for word in words:
        assert marked.read(f"{word} ".encode(), is_end=False) == plain.read(f"{word} ".encode(), is_end=False)
    assert marked.read(b"", is_end=True) == plain.read(b"", is_end=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('Wait.<break time="1.5s"/> Go.', "Wait.[1500] Go."),
        ('<speak>A<break time="250ms"/><break/><break strength="strong"/>B</speak>', "A[250][750][1000]B"),
        ('a<break strength="none"/><break time="0s"/>b', "ab"),
        ("<p>One</p><s>two</s>", "\n\nOne\n\n\n\ntwo\n\n"),
        ('<sub alias="World Wide Web">WWW<break/></sub>.', "World Wide Web."),
        ('<say-as interpret-as="characters">ab1</say-as>', " A  B  1 "),
        ('<say-as interpret-as="date">5/1</say-as>', "5/1"),
        ('<prosody rate="slow">a<break time="1s"/>b</prosody>c', "[0 80 %]a[1000 80 %]b[0]c"),
        ('<prosody rate="+50%">a<prosody rate="1.2">b</prosody></prosody>', "[0 150 %]a[0 180 %]b[0 150 %][0]"),
        ('<prosody rate="medium">a</prosody><prosody rate="-20%">b</prosody>', "a[0 80 %]b[0]"),
        ('<sub alias="x"><prosody rate="fast">a</prosody></sub>', "x"),
        ("R&amp;D &lt;b> &#65;", "R&D <b> A"),
        ("<speak>\n  a\n</speak>", "   a "),
        ('\ufeff<?xml version="1.0"?><speak>a</speak>', "a"),
        ('<?xml version="1.0" encoding="UTF-16"?>\n<speak xml:lang="de">ä</speak>', " ä"),
        ("<!-- no -->yes<![CDATA[<no>]]>", "yes<no>"),
    ],
)
def test_what_is_said(text: str, said: str) -> None:
    assert told(text) == said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<speak>a", "not well-formed"),
        ("a</speak>", "not well-formed"),
        ("AT&T is", "up to character 5"),
        ("3 < 5", "up to character 4"),
        ("&nbsp;", "undefined entity"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><speak>&b;</speak>', "not well-formed"),
        (' <?xml version="1.0"?><speak/>', "not at start"),
        ('<?xml version="1.0"?><?xml version="1.0"?><speak/>', "not at start"),
        ("<?xml", "not well-formed"),
        ("</ssml><ssml>", "not well-formed"),
        ("\x00", "not well-formed"),
        ('<audio src="x"/>', "SSML's audio is not known"),
        ("<strong>a</strong>", "SSML's strong is not known"),
        ("<ssml/>", "SSML's ssml is not known"),
        ("<sub>a</sub>", "sub has no alias"),
        ('<say-as interpret-as="bleep">a</say-as>', "'bleep'"),
        ('<break time="11s"/>', "'11s'"),
        ('<break time="soon"/>', "'soon'"),
        ('<prosody pitch="high">a</prosody>', "rate alone"),
        ('<prosody rate="slow" pitch="high">a</prosody>', "rate alone"),
        ('<prosody rate="300%">a</prosody>', "300 %"),
        ('<prosody rate="slow"><prosody rate="50%">a</prosody></prosody>', "40 %"),
        ('<prosody rate="+2">a</prosody>', "'\\+2'"),
        ('<phoneme alphabet="pinyin" ph="ni3">a</phoneme>', "knows no phonemes; respell"),
        ("<phoneme>a</phoneme>", "phoneme has no alphabet"),
        (13 * '<break time="10s"/>', "longer than 120 s"),
        ('<break strength="huge"/>', "'huge'"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        read(text)


@pytest.mark.parametrize("token", [token for token in ADDED_TOKENS if token.startswith("[")] + ["<|endofprompt|>", "<strong>"])
def test_nothing_of_it_is_a_special_token(tokenizer: TextTokenizer, token: str) -> None:
    escaped = token.replace("<", "&lt;")
    for text in (escaped, f'<sub alias="{escaped}">a</sub>', "".join(f"&#{ord(character)};" for character in token), token):
        try:
            found = TextIn(tokenizer, None, MarkupReader()).read(text.encode(), is_end=True)
        except InvalidInputError:
            continue
        assert not {one.id for one in found if isinstance(one, TextToken)} & set(tokenizer.special_tokens.values())


def test_a_rate_is_refused_where_the_speech_has_one_speed() -> None:
    with pytest.raises(InvalidInputError, match="cannot be changed here"):
        MarkupReader(has_rate=False).push('<prosody rate="slow">', is_end=False)


def test_a_wrong_tag_is_refused_as_soon_as_it_is_wrong() -> None:
    """A text that is no SSML must not wait for its end."""
    with pytest.raises(InvalidInputError):
        MarkupReader().push("if a < b then", is_end=False)


def test_text_beside_breaks_has_no_blanks(tokenizer: TextTokenizer) -> None:
    def ids(text: str) -> list[int]:
        return [
            one.id for one in TextIn(tokenizer, TextPreparation(), MarkupReader()).read(text.encode(), True) if isinstance(one, TextToken)
        ]

    assert ids("Wait. <break/> Go.") == ids("Wait.") + ids("Go.")


FRAGMENTS = st.sampled_from(
    (
        DECLARED,
        *("<", ">", "</", "/>", "<speak>", "</speak>", "<break", ' time="1s"', "<sub", ' alias="a"', "</ssml>", "<ssml>", "&", "&amp;"),
        *("&#xD800;", "]]>", "<![CDATA[", "<!--", "-->", "<?xml?>", "<!DOCTYPE a>", '"', "'", "=", "a", " ", "<p>", "</p>", "\x00"),
    )
)


@settings(max_examples=60)
@given(fragments=st.lists(st.one_of(FRAGMENTS, st.characters(exclude_categories=["Cs"])), max_size=14), cuts=CUTS)
def test_anything_is_read_or_refused(fragments: list[str], cuts: list[int]) -> None:
    """And the same way whatever the cuts."""

    def outcome(parts: list[int]) -> list[MarkedText] | str:
        try:
            return read("".join(fragments), parts)
        except InvalidInputError as error:
            return error.sentence

    assert outcome(cuts) == outcome([])
