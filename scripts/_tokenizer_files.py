"""Tokenizer files of a random checkpoint: a small but real byte-level BPE in the files of ``CosyVoice-BlankEN``.

``write_tokenizer_files`` (called by ``scripts/make_checkpoint.py``) writes ``vocab.json``, ``merges.txt`` and
``tokenizer_config.json`` exactly as Qwen2 ships them. The merges are learned deterministically from the short
text below; a larger vocabulary is padded with entries that no merge produces, so that no text reaches them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from bistream.families.cosyvoice2 import BASE_TOKENS, COSYVOICE2, TEXT_DIRECTORY
from bistream.families.family import Family
from bistream.text.tokenizer import byte_of_symbol, make_pre_tokenizer

MIN_VOCAB_SIZE = 256  # the byte symbols alone
FULL_VOCAB_SIZE = 151_643  # base entries of the released model; its special tokens start at this id

_MIN_PAIR_COUNT = 2  # a pair that occurs once is a whole word of the corpus, not a regularity of the language
_CORPUS = """
The weather was clear this morning, so we walked along the river and talked about the journey that lay before us.
She asked whether the train would arrive on time; he said that nobody knew, but that waiting was better than running.
When you speak to a machine, you want it to answer before you have finished thinking of the next question.
There is a small house on the hill where the light is never turned off, and the people who live there tell stories.
I don't know what they're going to say, but I'm sure they'll say it well, and we've got the whole evening for it.
Please open the window, close the door, and read the first page of the letter that came with the post today.
The children were playing in the garden while their mother was reading and their father was making something to eat.
Speech is made of sounds, sounds are made of waves, and waves are nothing but numbers that change with time.
Every good conversation starts with listening; everything else, the words and the voice, comes after that.
Hello world. How are you today? Thank you very much, that is very kind of you. Good night, and see you tomorrow!
今天的天气很好，我们沿着河边散步，谈起了将要开始的旅行。
她问火车会不会准时到，他说没有人知道，不过等一等总比跑着去要好。
当你对机器说话的时候，你希望它在你想好下一个问题之前就开始回答。
山上有一座小房子，那里的灯从来不关，住在那里的人喜欢讲故事。
请把窗户打开，把门关上，然后读一读今天收到的那封信的第一页。
孩子们在花园里玩，妈妈在看书，爸爸在准备晚上要吃的东西。
语音是由声音组成的，声音是由波组成的，而波不过是随时间变化的数字。
每一次好的谈话都从倾听开始，别的东西，语言和声音，都在这之后。
你好，世界。你今天好吗？非常感谢，你真是太客气了。晚安，我们明天再见！
我们的人工智能可以合成语音，大家都可以用它来说话，也可以用它来读书。
"""


def special_token_count(family: Family = COSYVOICE2) -> int:
    """Ids that follow the base vocabulary."""
    return len(family.base_tokens) + len(family.added_tokens)


def byte_symbols() -> list[str]:
    """The symbols alone, in that order."""
    return list(byte_of_symbol())


@cache
def learn_merges() -> list[tuple[str, str]]:
    """Most frequent pair first, ties by the symbols themselves: the same list on every machine. All that the text has."""
    pieces = make_pre_tokenizer().pre_tokenize_str(_CORPUS)
    words = Counter(tuple(piece) for piece, _ in pieces)
    merges: list[tuple[str, str]] = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] < _MIN_PAIR_COUNT:
            return merges
        merges.append(best)
        words = _merge_words(words, best)


def _merge_words(words: Counter[tuple[str, ...]], pair: tuple[str, str]) -> Counter[tuple[str, ...]]:
    merged: Counter[tuple[str, ...]] = Counter()
    for word, count in words.items():
        symbols: list[str] = []
        index = 0
        while index < len(word):
            if word[index : index + 2] == pair:
                symbols.append(word[index] + word[index + 1])
                index += 2
            else:
                symbols.append(word[index])
                index += 1
        merged[tuple(symbols)] += count
    return merged


def make_vocabulary(vocab_size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Entries with their ids (0..vocab_size-1, special tokens not included) and the merges that produce them."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size is {vocab_size}; a byte-level vocabulary needs at least {MIN_VOCAB_SIZE} entries.")
    merges = learn_merges()[: vocab_size - MIN_VOCAB_SIZE]
    entries = [*byte_symbols(), *("".join(merge) for merge in merges)]
    entries += [f"<unused_{index}>" for index in range(vocab_size - len(entries))]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    if len(vocabulary) != vocab_size:
        raise AssertionError("two vocabulary entries are equal")
    return vocabulary, merges


FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def qwen2_tokenizer_config(added: Mapping[str, int], special: Sequence[str], **more: object) -> dict[str, object]:
    """Content of ``tokenizer_config.json``. added: ids of the tokens behind the base vocabulary. special: those that decoding leaves out,
    beside the first of ``added``. more: which of them ends and pads, and the longest text."""
    left_out = {next(iter(added)), *special}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): {"content": name, **FLAGS, "special": name in left_out} for name, number in added.items()},
        "additional_special_tokens": list(special),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
        **more,
    }


def tokenizer_config(vocab_size: int) -> dict[str, object]:
    """Qwen2's, whose three special tokens follow the base vocabulary."""
    added = {token: vocab_size + index for index, token in enumerate(BASE_TOKENS)}
    ends = {"eos_token": BASE_TOKENS[0], "pad_token": BASE_TOKENS[0]}
    return qwen2_tokenizer_config(added, BASE_TOKENS[1:], model_max_length=32768, **ends)


def write_tokenizer_files(directory: Path, vocab_size: int) -> None:
    """Write the three tokenizer files into ``directory``/CosyVoice-BlankEN, or into ``directory`` itself if it has that name.

    vocab_size: base entries, the special tokens not counted: they take the next ``special_token_count`` ids, so the text
    embedding needs at least so many rows more. Raises ``ValueError`` below ``MIN_VOCAB_SIZE``.
    """
    target = directory if directory.name == TEXT_DIRECTORY else directory / TEXT_DIRECTORY
    target.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = make_vocabulary(vocab_size)
    _write(target / "vocab.json", json.dumps(vocabulary, ensure_ascii=False))
    _write(target / "merges.txt", "".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in merges)]))
    _write(target / "tokenizer_config.json", json.dumps(tokenizer_config(vocab_size), indent=2, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
