"""The golden utterance: how two compare, what is stored, what a refusal says. A stand-in answers for the server's models."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.contract.codec import Arrays
from bistream.contract.fields import AUDIO_TOKENIZER, COSYVOICE2_BISTREAM, LLM_BISTREAM, SPEAKER_EMBEDDING, ModelContract
from bistream.hops.policy import HopPolicy
from bistream.keeper import golden_check, golden_store
from bistream.keeper.golden import DISTANCE_EXACT, DISTANCE_OTHER, SEED, Golden, audio_fault, difference, hops
from bistream.keeper.golden_check import GoldenCheck
from bistream.keeper.golden_store import GoldenStore, check_archives, checkpoint, environment
from bistream.keeper.host import GoldenError
from bistream.keeper.model_requests import Values
from bistream.keeper.server_process import TritonServer, never
from bistream.store.fingerprint import Fingerprint
from bistream.types import FloatArray
from tests.formats import AUDIO_FORMAT, BLOCKS, SAMPLES_PER_TOKEN
from tests.unit.voice.voices import noise

TOKENS = 40


def audio_of(tokens: Sequence[int]) -> FloatArray:
    """Every token has a sound of its own."""
    sounds = [np.random.default_rng(int(token)).standard_normal(SAMPLES_PER_TOKEN) for token in tokens]
    audio: FloatArray = (0.1 * np.concatenate(sounds)).astype(np.float32)
    return audio


def golden(seed: int = 0, tokens: int = TOKENS) -> Golden:
    generator = np.random.default_rng(seed)
    voice_tokens = generator.integers(0, 6561, 25).astype(np.int32)
    embedding = generator.standard_normal(192).astype(np.float32)
    speech_tokens = generator.integers(0, 6561, tokens).astype(np.int32)
    return Golden(voice_tokens, embedding, speech_tokens, audio_of(speech_tokens.tolist()))


# Comparing


@given(st.integers(1, 300), st.integers(0, 100), st.integers(1, 8))
def test_hops_are_all_tokens_in_order(count: int, prompt_tokens: int, chunks: int) -> None:
    pieces = hops(np.arange(count, dtype=np.int32), prompt_tokens, HopPolicy(AUDIO_FORMAT, BLOCKS, max_chunks=chunks))
    assert np.concatenate(pieces).tolist() == list(range(count)) and all(len(piece) for piece in pieces[:-1])


@given(place=st.integers(0, TOKENS - 1), exact=st.booleans())
def test_one_speech_token_is_a_difference_in_one_environment_only(place: int, exact: bool) -> None:
    stored = golden()
    tokens = stored.speech_tokens.copy()
    tokens[place] += 1
    found = difference(stored, replace(stored, speech_tokens=tokens), exact)
    assert found == (f"llm_bistream speaks other speech tokens, from number {place + 1} of {TOKENS} on" if exact else None)
    shorter = replace(stored, speech_tokens=stored.speech_tokens[:place])
    assert "llm_bistream" in (difference(stored, shorter, exact=True) or "") and difference(stored, stored, exact) is None


def with_voice_tokens(changed: int) -> Golden:
    tokens = golden().voice_tokens.copy()
    tokens[:changed] += 1
    return replace(golden(), voice_tokens=tokens)


def with_embedding(embedding: Any) -> Golden:
    return replace(golden(), embedding=embedding.astype(np.float32))


def louder(apart: float) -> Golden:
    """All bands of a waveform that is louder by a factor are further by its logarithm."""
    return replace(golden(), waveform=(np.exp(apart) * golden().waveform).astype(np.float32))


@pytest.mark.parametrize(
    ("here", "differs", "differs_exactly"),  # between environments, and in one
    [
        (with_voice_tokens(1), None, "audio_tokenizer"),
        (with_voice_tokens(2), None, "audio_tokenizer"),
        (with_voice_tokens(3), "audio_tokenizer", "audio_tokenizer"),
        (with_embedding(golden().embedding + 1e-4 * noise(192)), None, None),
        (with_embedding(np.full(192, np.nan)), "speaker_embedding", "speaker_embedding"),
        (with_embedding(np.zeros(192)), "speaker_embedding", "speaker_embedding"),
        (with_embedding(np.ones(100)), "speaker_embedding", "speaker_embedding"),
        (louder(0.5 * DISTANCE_EXACT), None, None),
        (louder(0.5 * (DISTANCE_EXACT + DISTANCE_OTHER)), None, "token2wav makes other audio"),
        (louder(2.0 * DISTANCE_OTHER), "token2wav makes other audio", "token2wav makes other audio"),
        (replace(golden(), waveform=golden().waveform[:-1]), "token2wav makes other audio", "token2wav makes other audio"),
    ],
)
def test_each_stage_has_a_bound_of_its_own(here: Golden, differs: str | None, differs_exactly: str | None) -> None:
    for exact, words in ((False, differs), (True, differs_exactly)):
        found = difference(golden(), here, exact)
        assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize(
    ("waveform", "fault"), [([], "empty"), ([0.1, np.nan], "NaN"), ([np.inf], "NaN"), ([0.1, -1.2], "peak of 1.2"), ([0.0] * 9, "silent")]
)
def test_audio_that_no_checkpoint_means(waveform: list[float], fault: str) -> None:
    assert fault in (audio_fault(np.array(waveform, np.float32)) or "")


# Storing


def test_the_own_environment_comes_first_then_the_newest(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path, Fingerprint({"llm.pt": "1"}))
    plain, graphs, other = (Fingerprint({"tiers": name}) for name in ("plain", "graphs", "other"))
    assert store.find(plain) is None
    old, new = store.save(golden(1), plain), store.save(golden(2), graphs)
    os.utime(old, (1, 1))
    found = store.find(plain)
    assert found is not None and found.environment == plain and found.path == old
    for name, array in asdict(golden(1)).items():
        np.testing.assert_array_equal(asdict(found.golden)[name], array)
    found = store.find(other)
    assert found is not None and found.environment == graphs and found.path == new
    new.write_bytes(new.read_bytes()[:-9])
    found = store.find(other)
    assert found is not None and found.environment == plain
    assert GoldenStore(tmp_path, Fingerprint({"llm.pt": "2"})).find(plain) is None
    assert {path.suffix for path in store.folder.iterdir()} == {".safetensors"}


# What it depends on


def parameters(model_dir: Path, **settings: str) -> dict[str, dict[str, str]]:
    models = [*golden_store.CHECKPOINT_FILES, COSYVOICE2_BISTREAM.name]
    return {model: {"model_dir": str(model_dir), "device": "cpu", **settings} for model in models}


@pytest.fixture
def model_dir(tmp_path: Path, tiny_model_dir: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = len(content) * 3 // 10
    content[place : place + 4096] = bytes(4096)
    path.write_bytes(content)


def test_damaged_weights_are_the_same_checkpoint_and_other_files_are_not(model_dir: Path) -> None:
    before = checkpoint(parameters(model_dir))
    check_archives(parameters(model_dir))
    damage(model_dir / "hift.pt")
    assert checkpoint(parameters(model_dir)) == before
    with pytest.raises(GoldenError, match="hift.pt is damaged .*; download it again"):
        check_archives(parameters(model_dir))
    with (model_dir / "CosyVoice-BlankEN/vocab.json").open("ab") as file:
        file.write(b" ")
    other = checkpoint(parameters(model_dir))
    torch.save({"other": torch.zeros(3)}, model_dir / "hift.pt")
    assert checkpoint(parameters(model_dir)) != other != before


def test_settings_belong_to_the_checkpoint_or_the_environment(model_dir: Path) -> None:
    plain = parameters(model_dir)
    assert checkpoint(parameters(model_dir, dtype="float16", num_threads="2")) == checkpoint(plain)
    assert checkpoint(parameters(model_dir, left_context_chunks="4")) != checkpoint(plain)
    assert environment(parameters(model_dir, max_sessions="9"), "", "a") == environment(plain, "", "a")
    others = [
        environment(parameters(model_dir, dtype="float16"), "", "a"),
        environment(plain, "flow graphs", "a"),
        environment(plain, "", "b"),
    ]
    engine = model_dir / "engine"
    engine.mkdir()
    for content in ("1", "2"):
        (engine / "config.json").write_text(content, encoding="utf-8")
        others.append(environment(parameters(model_dir, engine_dir=str(engine)), "", "a"))
    digests = {found.digest for found in (environment(plain, "", "a"), *others)}
    assert len(digests) == 6


# Checking


class Speaker:
    """Answers as a server that speaks ``says``, louder by ``gain``; ``then`` from the second utterance on."""

    def __init__(self, says: Golden, then: Golden | None = None, gain: float = 1.0) -> None:
        self._says, self._then, self._gain = says, then, gain
        self.utterances = 0

    def __call__(self, grpc_url: str, timeout_s: float, should_stop: Callable[[], bool]) -> Speaker:
        return self

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def ask(self, contract: ModelContract, arrays: Values) -> list[Arrays]:
        says = self._says if self.utterances == 0 or self._then is None else self._then
        if contract is AUDIO_TOKENIZER:
            return [{"prompt_speech_tokens": says.voice_tokens}]
        if contract is SPEAKER_EMBEDDING:
            mel = np.zeros((2 * len(says.voice_tokens), 80), np.float32)
            return [{"prompt_spk_embedding": says.embedding, "prompt_speech_feat": mel}]
        if contract is LLM_BISTREAM:
            parts = np.array_split(says.speech_tokens, 3)
            return [{"speech_token_ids": part} for part in parts]
        if contract is COSYVOICE2_BISTREAM:
            assert arrays["seed"] == SEED
            self.utterances += 1
            return [{"waveform": part.reshape(1, -1)} for part in np.array_split(self._audio(says.speech_tokens), 2)]
        return [{"waveform": self._audio(cast(NDArray[Any], arrays["target_speech_tokens"])).reshape(1, -1), "load_report": np.zeros(3)}]

    def _audio(self, tokens: NDArray[Any]) -> FloatArray:
        return (self._gain * audio_of(tokens.tolist())).astype(np.float32)


@pytest.fixture
def check(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Speaker]]:
    """Speaks, and returns who spoke."""
    monkeypatch.setattr(golden_check, "read_parameters", lambda repository: parameters(model_dir))

    def run(says: Golden, then: Golden | None = None, tiers: str = "plain", gain: float = 1.0) -> Speaker:
        metrics = f'bistream_tier{{stage="flow",tier="{tiers}"}} 1\n'
        monkeypatch.setattr(golden_check, "models_text", lambda directory: metrics)
        speaker = Speaker(says, then, gain)
        monkeypatch.setattr(golden_check, "ModelStream", speaker)
        settings = SimpleNamespace(model_repository=tmp_path / "repository")
        server = SimpleNamespace(settings=settings, grpc_url="", control_directory=tmp_path)
        GoldenCheck(tmp_path / "state")(cast(TritonServer, server), never)
        return speaker

    yield run


def stored_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "state").rglob("*.safetensors"))


def test_the_first_is_stored_and_a_difference_is_refused_unless_it_is_a_slip(
    tmp_path: Path, check: Callable[..., Speaker], caplog: pytest.LogCaptureFixture
) -> None:
    check(golden())
    (path,) = stored_files(tmp_path)
    before = path.stat()
    assert check(golden()).utterances == 1
    slipped = replace(golden(), voice_tokens=golden().voice_tokens[::-1].copy())
    assert check(slipped, then=golden()).utterances == 2
    assert stored_files(tmp_path) == [path] and path.stat().st_mtime_ns == before.st_mtime_ns
    tokens = golden().speech_tokens.copy()
    tokens[6:] = 0
    with pytest.raises(GoldenError) as failure:
        check(replace(golden(), speech_tokens=tokens))
    message = str(failure.value)
    assert message.startswith("The golden utterance is not as stored on 20")
    assert "llm_bistream speaks other speech tokens, from number 7 of 40 on; restore the files" in message
    assert f"remove {path.parent} if" in message and "spoken once more" in caplog.text
    shutil.rmtree(path.parent)
    check(replace(golden(), speech_tokens=tokens))


def test_another_tier_may_choose_other_tokens_but_not_make_other_audio(tmp_path: Path, check: Callable[..., Speaker]) -> None:
    check(golden())
    other_tokens = replace(golden(5), voice_tokens=golden().voice_tokens, embedding=golden().embedding)
    check(other_tokens, tiers="other")
    assert len(stored_files(tmp_path)) == 2
    check(other_tokens, tiers="other")
    with pytest.raises(GoldenError, match="llm_bistream speaks other speech tokens"):
        check(replace(golden(6), voice_tokens=golden().voice_tokens, embedding=golden().embedding), tiers="other")
    with pytest.raises(GoldenError, match="token2wav makes other audio of the same speech tokens"):
        check(golden(), tiers="graphs", gain=1.8)
    assert len(stored_files(tmp_path)) == 2


def test_a_tier_whose_sums_vary_is_compared_like_another_environment(tmp_path: Path, check: Callable[..., Speaker]) -> None:
    check(golden(), tiers="graphs")
    check(replace(golden(5), voice_tokens=golden().voice_tokens, embedding=golden().embedding), tiers="graphs")
    assert len(stored_files(tmp_path)) == 1
    with pytest.raises(GoldenError, match="token2wav makes other audio"):
        check(golden(), tiers="graphs", gain=1.8)


@pytest.mark.parametrize("factor", [0.0, np.nan, 100.0])
def test_what_is_no_speech_is_never_stored(tmp_path: Path, check: Callable[..., Speaker], factor: float) -> None:
    with pytest.raises(GoldenError, match="is no speech: the audio of token2wav "):
        check(golden(), gain=factor)
    assert stored_files(tmp_path) == []


def test_the_front_model_speaks_all_tokens(check: Callable[..., Speaker], monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Speaker.ask

    def cut(self: Speaker, contract: ModelContract, arrays: Values) -> list[Arrays]:
        return ask(self, contract, arrays)[: 1 if contract is COSYVOICE2_BISTREAM else None]

    monkeypatch.setattr(Speaker, "ask", cut)
    with pytest.raises(GoldenError, match="cosyvoice2_bistream speaks 19200 samples instead of 38400"):
        check(golden())


def test_a_state_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, check: Callable[..., Speaker], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file", encoding="utf-8")
    check(golden())
    assert "choose another --state-dir" in caplog.text


def test_a_repository_without_a_front_model_is_not_checked(
    tmp_path: Path, check: Callable[..., Speaker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(golden_check, "read_parameters", lambda repository: {"token2wav": {}})
    check(golden())
    assert "no golden utterance: the repository has no audio_tokenizer, speaker_embedding, llm_bistream, cosyvoice2_bistream" in caplog.text
    assert not (tmp_path / "state").exists()
