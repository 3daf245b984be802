"""Which family a directory is; that nothing else knows the families by name; that another one's rates reach what counts in them."""

from __future__ import annotations

import ast
import re
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.download import missing_files
from bistream.checkpoints.files import family_of, family_of_names
from bistream.client.say import main
from bistream.families.audio_format import AudioFormat
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.family import BlockLayout, Family
from bistream.families.registry import FAMILIES
from bistream.families.spark import SPARK
from bistream.hops.policy import HopPolicy
from bistream.hops.progress import HopProgress
from bistream.sessions.playback import Playback, SpokenEffort, SpokenText
from bistream.types import SpeechTokens
from tests.unit.client.fake_server import FakeServer, Received, Stream

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("bistream", "gateway", "interfaces", "plugins", "client", "model_repo")
# Code that may say the name, and why.
MAY_SAY_IT = {
    "bistream/contract/fields.py": "the names of upstream's front models",
    "bistream/conversion/modeling_cosyvoice2.py": "the name of a class, which the config.json of the merged checkpoint has",
    "bistream/conversion/modeling_cosyvoice3.py": "likewise",
    "bistream/text2token/tensorrt_llm/speech_head.py": "likewise",
    "interfaces/web/model_routes.py": "the name of upstream's front model, for clients that want to send one",
}
NAMES_OF_MODELS = {"COSYVOICE2", "COSYVOICE2_BISTREAM", "SPARK_TTS"}  # of the contract: upstream's front models
OTHER = AudioFormat(
    sample_rate=16_000, tokens_per_second=50, mel_frames_per_token=1, chunk_tokens=50, lookahead_tokens=5, vocoder_overlap_frames=2
)
QWEN2, COSYVOICE3_LM = "llm: !new:cosyvoice.llm.llm.Qwen2LM\n", "llm: !new:cosyvoice.llm.llm.CosyVoice3LM\n"


@pytest.mark.parametrize(
    ("files", "family"),
    [
        ({"cosyvoice2.yaml": QWEN2}, COSYVOICE2),
        ({"cosyvoice.yaml": QWEN2}, COSYVOICE2),
        ({"cosyvoice3.yaml": COSYVOICE3_LM}, COSYVOICE3),
        ({"cosyvoice3.yaml": ""}, COSYVOICE3),
        ({"cosyvoice3.yaml": COSYVOICE3_LM, "speech_tokenizer_v2.onnx": ""}, COSYVOICE3),
        ({"speech_tokenizer_v3.onnx": ""}, COSYVOICE3),
        ({"llm.pt": ""}, COSYVOICE2),
        ({"cosyvoice3.yaml": COSYVOICE3_LM, "CosyVoice-BlankEN/config.json": "", "config.yaml": ""}, COSYVOICE3),
        ({"CosyVoice-BlankEN/config.json": ""}, COSYVOICE2),
        ({"config.yaml": "", "BiCodec/config.yaml": ""}, SPARK),
        ({"LLM/config.json": ""}, SPARK),
        ({"BiCodec/model.safetensors": ""}, SPARK),
        ({"wav2vec2-large-xlsr-53/config.json": ""}, SPARK),
    ],
)
def test_the_family_of_a_directory(tmp_path: Path, files: dict[str, str], family: Family) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert family_of(tmp_path) is family


def test_no_directory_is_cosyvoice2() -> None:
    """What is missing is said by whoever reads it."""
    assert family_of("") is family_of("/there/is/none") is COSYVOICE2


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_listing_is_whole_with_the_files_of_its_family(family: Family) -> None:
    paths = {names[0] for names in family.required_files}
    assert family_of_names(paths) is family and missing_files(paths) == []
    for path in paths - {family.yaml_names[0]}:
        assert missing_files(paths - {path}) == [path]


def product_files() -> list[Path]:
    return [
        path
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if "tests" not in path.parts and path.parent != ROOT / "bistream" / "families"
    ]


def words_of(tree: ast.AST) -> Iterator[str]:
    """Names and strings of a program, without what is written for readers alone: comments, docstrings and help texts of options."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " not in text:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield name


def test_no_code_outside_the_families_says_their_names() -> None:
    found, name = dict[str, set[str]](), re.compile("cosyvoice|spark", re.IGNORECASE)
    for path in filter(lambda path: name.search(path.read_text(encoding="utf-8")), product_files()):
        words = {word for word in words_of(ast.parse(path.read_text(encoding="utf-8"))) if name.search(word)}
        if words - NAMES_OF_MODELS:
            found[path.relative_to(ROOT).as_posix()] = words - NAMES_OF_MODELS
    assert found.keys() == MAY_SAY_IT.keys(), {path: words for path, words in found.items() if path not in MAY_SAY_IT}


def test_no_code_asks_for_the_name_of_a_family() -> None:
    asks = re.compile(r"family\.(name|title) *(==|!=|in )|family (is|==) [A-Z]")
    assert [path for path in product_files() if asks.search(path.read_text(encoding="utf-8"))] == []


@given(st.integers(2, 100), st.integers(1, 4), st.integers(1, 1000))
def test_a_format_counts_in_whole_samples(tokens_per_second: int, frames: int, samples: int) -> None:
    made = AudioFormat(tokens_per_second * frames * samples, tokens_per_second, frames, 25, 3, 8)
    assert made.samples_per_token * tokens_per_second == made.samples_per_mel_frame * made.mel_frames_per_second == made.sample_rate
    with pytest.raises(ValueError, match="no whole number of samples"):
        AudioFormat(made.sample_rate + 1, tokens_per_second, frames, 25, 3, 8)


def test_the_rates_of_the_families_are_those_of_their_releases() -> None:
    released = {COSYVOICE2: (24_000, 25, 960), COSYVOICE3: (24_000, 25, 960), SPARK: (16_000, 50, 320)}
    for family in FAMILIES:
        rates = family.audio_format
        assert (rates.sample_rate, rates.tokens_per_second, rates.samples_per_token) == released[family]


@given(st.integers(1, 400), st.integers(0, 400))
def test_playback_and_position_count_in_the_rates_of_another_family(tokens: int, later: int) -> None:
    playback, effort = Playback(OTHER.sample_rate), SpokenEffort()
    effort.push("a" * tokens)
    playback.sent(tokens * OTHER.samples_per_token, now=0.0)
    assert playback.buffer_s(0.0) == pytest.approx(tokens / OTHER.tokens_per_second)
    spoken = SpokenText(effort, OTHER)
    for number in range(1, tokens + 1):
        spoken.tokens_came(SpeechTokens((0,), number, None))
    assert spoken.characters(min(tokens, later) * OTHER.samples_per_token, is_last=False) == min(tokens, later)


def test_hops_of_another_family_end_on_its_own_chunks() -> None:
    policy, sent, ends = HopPolicy(OTHER, BlockLayout(4, 20, 1, 40), first_hop_tokens=20), 0, list[int]()
    while (count := policy.next_hop(HopProgress(0, 1000, sent, has_ended=False))) is not None:
        sent += count
        ends.append(sent - OTHER.lookahead_tokens)
    assert ends[:2] == [20, 40] and len(ends) > 4
    assert all(end % OTHER.chunk_tokens == 0 for end in ends[2:])


def test_a_client_plays_what_it_hears_at_the_rate_that_the_server_tells(tmp_path: Path) -> None:
    def speak(request: Received, stream: Stream) -> None:
        stream.audio(request.id, np.zeros(OTHER.sample_rate // 2), 0, 2)
        stream.final(request.id)

    server, output = FakeServer(speak), tmp_path / "out.wav"
    server.card = {"sample_rate": str(OTHER.sample_rate)}
    try:
        assert main(["Hi", "--speaker-id", "anna", "--server", server.address, "--output", str(output)]) == 0
    finally:
        server.stop()
    with wave.open(str(output)) as written:
        assert (written.getframerate(), written.getnframes()) == (OTHER.sample_rate, OTHER.sample_rate // 2)
