"""What has no sound does not reach the model, whatever the cuts, and positions stay those of the caller's text."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.families.cosyvoice2 import ADDED_TOKENS
from bistream.text.characters import RETRACT, Emit
from bistream.text.markdown import MarkdownReader
from bistream.text.normalization import TextNormalizer
from bistream.text.preparation import TextPreparation, chosen_normalization, make_preparation, prepare_prompt
from bistream.text.text_in import TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer
from tests.unit.text.pieces import stream, tokens_of

SNIPPETS = (
    "hello", "Hello", "HELLO", "WORLD", "NASA", "THE", "JOHN", "I", "A", "I'M", "it's", "well-known", "word ", " word", "5", "1. ", "3.5",
    "a", " ", "  ", "\n", "\r\n", "\r", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\u200b", "\ufeff",
    "\u00ad", ".", "...", ",", "!", "?", "!!!", "?!", ":", ";", "-", "--", "---", "*", "**", "***", "_", "__", "#", "### ", "=", "===",
    "~~", "\u2014", "\u2026", "\u2018", "\u2019", "\u201c", "\u201d", '"', "'", "(", ")", "[", "]", "](", "![", "[^1]", "[ ] ", "- ", "+ ",
    "> ", "|", "|---|", "`", "```", "~~~", "\\", "<", ">", "<b>", "</b>", "<br/>", '<break time="1s"/>', "<speak>", "<!--", "-->", "&",
    "&amp;", "&lt;", "&#39;", "<y>", "https://x.y", "\U0001f600", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f1fa\U0001f1f8",
    "1\ufe0f\u20e3", "\u2192", "\u2605", "\u2022", "\ufb01", "\uff21", "\U0001d401", "\u4f60\u597d", "\u3002", "\uff0c", "\u304b",
    "e\u0301", "\u0301", "\u0928\u200d", "\u200c", "\ubc14", "\u0627", "\x00", "\x08", "\x1c", "\x1d", *ADDED_TOKENS,
)  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.characters(exclude_categories=["Cs"])), max_size=24).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=30)
MODES = st.sampled_from(["off", "off+markdown", "numbers", "numbers+markdown", "numbers+unknown marks"])


def preparation_of(mode: str) -> TextPreparation:
    read = partial(TextNormalizer, "auto", "zh", lambda text, language, kind: f"({language} {text})")
    normalizer = read if "numbers" in mode else None
    return TextPreparation(normalizer, "markdown" in mode, frozenset('"(.!') if "unknown" in mode else frozenset())


def prepared(text: str, is_markdown: bool = False) -> str:
    preparation, out = TextPreparation(reads_markdown=is_markdown), ""
    for one in (*preparation.push(text), *preparation.finish(is_end=True)):
        out = out[:-1] if one.character == RETRACT else out + one.character
    return out


@settings(max_examples=40)
@given(text=TEXTS, cuts=CUTS, mode=MODES)
def test_any_cut_gives_the_same_ids_and_positions(tokenizer: TextTokenizer, text: str, cuts: list[int], mode: str) -> None:
    tokens = stream(tokenizer, text.encode(), cuts, preparation_of(mode))
    assert tokens == stream(tokenizer, text.encode(), [], preparation_of(mode))
    ends = [token.end_char for token in tokens]
    assert ends == sorted(ends) and all(0 <= end <= len(text) for end in ends)


@settings(max_examples=40)
@given(text=TEXTS, mode=MODES)
def test_every_character_of_the_caller_is_covered_once(text: str, mode: str) -> None:
    preparation = preparation_of(mode)
    characters = [*preparation.push(text), *preparation.finish(is_end=True)]
    fenced = "```" in text or "~~~" in text
    if not (fenced and "markdown" in mode):  # what a code block holds is covered when it ends
        assert sum(one.source_characters for one in characters) == len(text)


def test_marks_that_the_checkpoint_does_not_know_are_not_spoken() -> None:
    """They are there for the readers of numbers."""
    read: list[str] = []

    def as_written(text: str, language: str, kind: str) -> str:
        read.append(text)
        return text

    preparation = TextPreparation(partial(TextNormalizer, "en", "en", as_written), False, frozenset('"()'))
    text = "She said: “Why?” and (then) called (555) 010-4477."
    made = "".join(one.character for one in (*preparation.push(text), *preparation.finish(is_end=True)))
    assert made == "She said: Why? and then called 555 010-4477."
    assert any(one.startswith("(555)") for one in read)


@settings(max_examples=40)
@given(
    words=st.lists(st.sampled_from("the quick Brown fox, jumps. over I A it's well-known (lazy) dogs!".split()), min_size=1, max_size=20)
)
def test_plain_text_is_unchanged_and_leaves_as_early(tokenizer: TextTokenizer, words: list[str]) -> None:
    """After every word and its blank, as many tokens are known as of the raw text."""
    raw, clean = TextIn(tokenizer), TextIn(tokenizer, TextPreparation(reads_markdown=True))
    raw_tokens, clean_tokens = list[TextToken](), list[TextToken]()
    for word in words:
        raw_tokens += tokens_of(raw, f"{word} ".encode())
        clean_tokens += tokens_of(clean, f"{word} ".encode())
        assert clean_tokens == raw_tokens
    assert clean_tokens + tokens_of(clean, b"", is_end=True) == stream(tokenizer, " ".join(words).encode(), [])


PLAIN = "The old miller's cat, a well-known thief, sat by the door. It was late."
VARIANTS = {
    "no-break blanks": PLAIN.replace(" ", "\u00a0"),
    "wide blanks": PLAIN.replace(" ", "\u3000\u2003"),
    "tabs": PLAIN.replace(" ", "\t"),
    "line feeds": PLAIN.replace(" ", "\n"),
    "CRLF": PLAIN.replace(" ", "\r\n"),
    "line separators": PLAIN.replace(" ", "\u2028"),
    "capitals": PLAIN.upper(),
    "blanks around": f"\ufeff \n {PLAIN} \n\n",
    "zero-width spaces": PLAIN.replace(" ", " \u200b").replace("tt", "t\u200bt"),
    "soft hyphens": PLAIN.replace("miller", "mil\u00adler"),
    "curly quotes and hyphens": PLAIN.replace("'", "\u2019").replace("-", "\u2011"),
    "emoji": PLAIN.replace(".", " \U0001f600\U0001f44d\U0001f3fd.").replace(
        ",", ", \U0001f1fa\U0001f1f8 \U0001f468\u200d\U0001f469\u200d\U0001f467"
    ),
    "symbols": "\u2605 " + PLAIN.replace(" ", " \u2192 ", 1),
    "SSML": '<speak version="1.0">' + PLAIN.replace(". ", '. <break time="1s"/> ') + "</speak>",
    "prosody": PLAIN.replace("cat", "<prosody rate='slow' pitch=\"+10%\">cat</prosody>"),
    "HTML": PLAIN.replace("cat", "<b>cat</b>").replace(". ", ".<br>\n"),
    "entities": PLAIN.replace("'", "&#39;").replace(" ", "&nbsp;", 2),
    "mathematical letters": PLAIN.replace("cat", "\U0001d41c\U0001d41a\U0001d42d").replace("door", "\uff44\uff4f\uff4f\uff52"),
    "a heading's mark": f"### {PLAIN}",
    "emphasis": PLAIN.replace("cat", "**cat**").replace("thief", "_thief_"),
    "a ruler": PLAIN.replace(". ", ".\n\n---\n\n"),
    "bullets": PLAIN.replace("It", "\n- It"),
    "code": PLAIN.replace("cat", "`cat`"),
    "many marks": PLAIN.replace(",", ",,,,"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_the_plain_sentence(name: str) -> None:
    assert prepared(VARIANTS[name]) == PLAIN
    assert prepared(VARIANTS[name], is_markdown=True) == PLAIN


@pytest.mark.parametrize(
    "text",
    (
        *(
            "3 < 5 and 7 > 2", "a<b", "I <3 you", "if (a<b) return a&b;", "List<String> x", "Dear <name>,", "R&D and AT&T", "x <y",
            "5 * 3 = 15",
        ),
        *(
            "snake_case",
            "C# and F#, issue #5",
            "-5 degrees",
            "5%\u201310%, $5M\u2013$10M",
            "3.5 and 1/2",
            "$5, \u20ac5",
            "\u00bd \u00b2 45\u00b0C",
            "HTML, NASA, the USA, API, IBM, I, A, OK.",
        ),
        *(
            "Chapter VIII and WWII",
            "MP3, COVIDs, McDonald, iPhone",
            "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
            "\u201c\u5f15\u7528\u201d\u2026\u2026",
            "\u0928\u094d\u200d\u0926",
        ),
        *("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u041f\u0420\u0418\u0412\u0415\u0422", "What?! (No.)"),
    ),
)  # fmt: skip
def test_text_that_means_something_is_unchanged(text: str) -> None:
    assert prepared(text) == text


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("HELLO WORLD THIS IS GREAT", "Hello world this is great"),
        ("THE NASA TEAM. I'M HERE, JOHN SAW ANN", "The NASA team. I'm here, john saw ann"),
        ("The NASA API and an IBM PC", "The NASA API and an IBM PC"),
        ("It is VERY important, IMPORTANT even", "It is very important, important even"),
        ("Apples\nPears\nBananas", "Apples, Pears, Bananas"),
        ("when\nI\nsaid I'd go\nIn or\nI'd stay\nIIII", "when I said I'd go, In or I'd stay, IIII"),
        ("A heading\n\nthe text", "A heading. the text"),
        ("wrapped at a width\nin the middle", "wrapped at a width in the middle"),
        ("\u4f60\u597d\n\u4e16\u754c\n\n\u518d\u89c1\u3002\n\u597d", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u518d\u89c1\u3002\u597d"),
        ("\u597d\U0001f600\u7684", "\u597d\u7684"),
        ("word\U0001f600word", "word word"),
        ("To buy\n- milk\n* eggs\n\u2013 bread\n\u2022 salt.\n- oil", "To buy, milk, eggs, bread, salt. oil"),
        (
            "- a line that is longer than fifty characters, so no verse\n- another one",
            "a line that is longer than fifty characters, so no verse, another one",
        ),
        ("Size \u2022 Color\n- \u7ea2\n- \u84dd", "Size, Color, \u7ea2\uff0c\u84dd"),
        ("5 *new* ideas, 2*3, 4 * 5, 6*x", "5 new ideas, 2*3, 4 * 5, 6*x"),
        ("It takes *5 minutes*, not *10*.\n*6 people*", "It takes 5 minutes, not 10. 6 people"),
        ("Plans\n- $5 a month\n- \u20ac6 \u2014 \u00a37 Wait...$8", "Plans, $5 a month, \u20ac6, \u00a37 Wait, $8"),
        ("Model 15 \u2014 $799", "Model 15, $799"),
        ("-$5 today", "-$5 today"),
        ("~\u20ac20 or so", "~\u20ac20 or so"),
        ("...\u20ac5", "\u20ac5"),
        ("well--known, yes --- no - so\u2014there \u2013 and \u2014", "well, known, yes, no, so, there, and"),
        ("Wait... what? Well\u2026 The end. I see....", "Wait, what? Well. The end. I see."),
        ("\u597d... \u7684", "\u597d\uff0c\u7684"),
        ("10\u201320, 5 - 3, x-y, \u2014 so", "10\u201320, 5 - 3, x-y, so"),
        ("5 \u2013 7 and 2020 \u2014 2024, 5 \u2013 so", "5 \u2013 7 and 2020 \u2013 2024, 5, so"),
        ("\u597d\u2014\u2014\u7684", "\u597d\u2014\u2014\u7684"),
        ("\u2460 \u2776 \u2162 \ufb01 1\ufe0f\u20e3", "1 1 III fi 1"),
        ("Really\u2753 Yes\u203c\ufe0f", "Really? Yes!"),
        ("no!!! wow??? what?!?!", "no! wow? what?!"),
        ("<y>5</y> <#0.5#>x<!-- not this -->.", "<y>5 x."),
    ],
)
def test_what_is_spoken(text: str, spoken: str) -> None:
    assert prepared(text) == spoken


@pytest.mark.parametrize("sign", "$£€¥￥₹₩₽~±≈≤≥<>√+-.№§")
def test_a_sign_before_a_number_is_spoken_at_the_beginning_too(sign: str) -> None:
    begun, later = prepared(f"{sign}20 is it."), prepared(f"So {sign}20 is it.")
    assert begun == later.removeprefix("So ") and sign in begun


@pytest.mark.parametrize(
    "text", ("...", "\u3002\u3002\u3002", "!!!", "\U0001f600", " \n\t", "###", "<speak></speak>", "---", "* * *", "\u2014", "\u200b")
)
def test_nothing_is_spoken_of_marks_alone(text: str) -> None:
    assert not any(character.isalnum() for character in prepared(text))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("# One\n\nTwo **three** `four`.\n", "One. Two three four."),
        ("Text:\n- one\n- two\n  * three\nafter", "Text: one. two. three. after"),
        ("So\n- [ ] one\n- [x] two", "So. one. two"),
        ("So\n\u2022 one\n\u2022 two \u2022 three", "So. one. two, three"),
        ("1. First\n2. Second", "1. First. 2. Second"),
        ("> quoted\n> on", "quoted on"),
        ("See [the docs](https://x.y/a_(b)) and ![a cat](c.png).", "See the docs and a cat."),
        ("It is so.[1](https://x.y)[2](https://y.z) And[3](http://z) [a](b)[c](d), a[0](x)", "It is so. 1 2 And[3] a c, a[0](x)"),
        ("As said[^1] in [it][2], a[0] [sic].\n\n[^1]: A note.\n[2]: https://x.y", "As said in it, a[0] sic. A note."),
        ("| Name | Age |\n|:-----|:---:|\n| Ann | 5 |\n| Bob | 6 |", "Name, Age. Ann, 5. Bob, 6"),
        ("Run\n```python\nprint(1)\n```\nand see", "Run. and see"),
        ("Title\n=====\ntext \\*so\\* ~~gone~~ &amp; on", "Title. text so gone & on"),
        ("\u2705 Done\n\u2705 More", "Done. More"),
        ("[not a link](unclosed", "not a link](unclosed"),
        ("Hi! Yes [a] or a|b", "Hi! Yes a or a|b"),
    ],
)
def test_markdown_is_spoken_without_its_marks(text: str, spoken: str) -> None:
    assert prepared(text, is_markdown=True) == spoken


def test_what_is_held_is_bounded() -> None:
    """However long a tag, an address or a code block is, what follows it and what turned out to be none is given out."""
    for beginning, most in (('<a href="', 600), ("[x](", 600), ("[^", 60), ("&", 16), ("NO DOTS ON ", 60), ("<!--", 600)):
        preparation = TextPreparation(reads_markdown=True)
        preparation.push(f"Hello {beginning}")
        assert any(preparation.push("a" * index) for index in range(1, most)), beginning


def test_the_work_is_bounded_by_the_text() -> None:
    """Released text is read again once or twice, not once per character; a stage that counts its characters shows it."""
    for text in ("[a](" * 1000, "`" * 4000, "](" * 2000, "[" * 4000 + "](" * 1000, "<a b='" * 700, "&a" * 2000, "[^" * 2000):
        reader = MarkdownReader(lambda character, count: None)
        calls, feed = [0], reader._feed_inline

        def counted(character: str, count: int, calls: list[int] = calls, feed: Emit = feed) -> None:
            calls[0] += 1
            feed(character, count)

        reader._feed_inline = counted  # type: ignore[method-assign]
        for character in text:
            reader.feed(character, 1)
        reader.finish(is_end=True)
        assert calls[0] <= 50 * len(text), text[:8]


def test_modes() -> None:
    assert make_preparation("raw", "") is None
    assert chosen_normalization(None, "auto") == "auto"
    assert chosen_normalization("+markdown", "auto") == "auto+markdown" == chosen_normalization("+markdown", "auto+markdown")
    assert (chosen_normalization("+markdown", "raw"), chosen_normalization("zh", "raw")) == ("raw", "zh")


def test_prompts_are_cleaned_and_keep_their_tokens() -> None:
    tokens = frozenset({"<|endofprompt|>", "[laughter]"})
    instruction = "You are a helpful assistant.<|endofprompt|>"
    assert prepare_prompt(instruction, "auto", tokens, is_spoken=False) == instruction
    assert prepare_prompt("It\u2019s\u00a0**me** [laughter] again\n", "off+markdown", tokens, is_spoken=True) == "It's me [laughter] again"
    assert prepare_prompt("IT\u2019S\n", "raw", tokens, is_spoken=True) == "IT\u2019S\n"
