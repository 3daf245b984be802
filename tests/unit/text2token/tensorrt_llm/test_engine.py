"""What the engine asks of TensorRT-LLM, what it counts, and what it does when TensorRT-LLM fails. Over the fake library."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, ConfigError, EngineError, UnknownSessionError
from bistream.metrics import catalogue
from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.factory import make_engine
from bistream.text2token.tensorrt_llm.engine import STALL_S
from bistream.text2token.tensorrt_llm.library import SINGLE_PROCESS, load_llmapi
from tests.fakes import RecordingSink
from tests.recorded import sample
from tests.unit.text2token.tensorrt_llm.bench import MERGED, PortBench
from tests.unit.text2token.tensorrt_llm.fake_llmapi import Choose
from tests.unit.text2token.tiny import SPACE

GREEDY = SamplingSpec(temperature=0.0)
ALL_STOPS = frozenset(SPACE.specials)
FILL_OR_LENGTH = TurnLimits(15, forbidden=ALL_STOPS - {SPACE.fill}, record_on_length=SPACE.fill)
PROMPT = [SPACE.sos, *range(1, 40)]
EOS, SECOND, FILL = MERGED.to_merged(SPACE.specials)


def speech_only(ids: list[int], sampling: SimpleNamespace) -> Sequence[int]:
    return [MERGED.speech_offset + len(ids) % SPACE.speech_token_size]


def stop_after(count: int, stop_id: int) -> Choose:
    """``stop_id`` is preferred at every multiple of ``count`` ids."""

    def choose(ids: list[int], sampling: SimpleNamespace) -> Sequence[int]:
        return [*([stop_id] if len(ids) % count == 0 else []), *speech_only(ids, sampling)]

    return choose


@pytest.fixture
def bench() -> Iterator[PortBench]:
    made = PortBench(speech_only)
    yield made
    made.close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.mark.parametrize("end_id_in_output", [True, False])
@pytest.mark.parametrize("stop_id", SPACE.specials)
def test_every_stop_id_is_recognized(stop_id: int, end_id_in_output: bool) -> None:
    """The end id has no stop reason, and may or may not be among the ids; the others are removed from them."""
    (merged,) = MERGED.to_merged([stop_id])
    bench = PortBench(stop_after(45, merged), end_id_in_output=end_id_in_output)
    ids, result = bench.run(bench.engine.open("a", GREEDY, 400), PROMPT, TurnLimits(30))
    assert (len(ids), result) == (5, TurnResult(TurnEnd.STOP, stop_id))
    bench.close()


def test_a_forbidden_stop_id_is_rejected_and_drawn_again_with_a_mask(recorder: Recorder) -> None:
    bench = PortBench(stop_after(45, EOS), recorder=recorder)
    session = bench.engine.open("a", GREEDY, 400)
    ids, result = bench.run(session, PROMPT, FILL_OR_LENGTH)
    assert (len(ids), result) == (15, TurnResult(TurnEnd.LENGTH))
    _, (_, masked), _ = bench.library.requests
    assert masked.max_tokens == 1 and [int(one) for one in (masked.embedding_bias < 0).nonzero().flatten()] == [EOS, SECOND]
    assert counted(recorder, catalogue.REJECTED_STOPS.name) == 1
    bench.close()


def test_a_mask_that_is_not_honoured_ends_the_session(bench: PortBench) -> None:
    bench.library.ignores_bias = True
    bench.library.choose = lambda ids, sampling: [EOS]
    ids, result = bench.run(bench.engine.open("a", GREEDY, 400), PROMPT, FILL_OR_LENGTH)
    assert ids == [] and result.end is TurnEnd.ERROR and result.error
    assert bench.engine.healthy


def counted(recorder: Recorder, name: str) -> float:
    return sample(recorder, name.removeprefix("bistream_"))


def test_a_displaced_prefix_is_computed_again_and_changes_nothing(recorder: Recorder) -> None:
    bench, undisturbed = PortBench(recorder=recorder), PortBench()
    results = []
    for each in (bench, undisturbed):
        session = each.engine.open("a", GREEDY, 400)
        ids: list[int] = []
        for turn in range(4):
            ids += each.run(session, PROMPT if turn == 0 else [turn, 2, 3, 4, 5], FILL_OR_LENGTH)[0]
            if each is bench:
                bench.library.stored.clear()
        results.append(ids)
    assert results[0] == results[1]
    assert counted(recorder, catalogue.RECOMPUTED_TOKENS.name) > 3 * len(PROMPT)
    bench.close()
    undisturbed.close()


def test_a_cancel_reaches_tensorrt_llm(bench: PortBench) -> None:
    session = bench.engine.open("a", GREEDY, 2000)
    sink = RecordingSink()
    session.turn(PROMPT, TurnLimits(1900, forbidden=ALL_STOPS), sink)
    bench.step()
    session.cancel()
    bench.settle()
    assert sink.result == TurnResult(TurnEnd.CANCELLED)
    bench.step()
    assert not bench.library.running and len(sink.ids) <= 2


def test_a_request_that_is_refused_ends_its_session_alone(bench: PortBench) -> None:
    good, bad = bench.engine.open("good", GREEDY, 400), bench.engine.open("bad", GREEDY, 400)
    sinks = [RecordingSink(), RecordingSink()]
    good.turn(PROMPT, FILL_OR_LENGTH, sinks[0])
    bench.step()
    bench.library.reject_requests = True
    bad.turn(PROMPT, FILL_OR_LENGTH, sinks[1])
    bench.drive(sinks)
    assert sinks[0].result == TurnResult(TurnEnd.LENGTH)
    assert sinks[1].result is not None and sinks[1].result.end is TurnEnd.ERROR and "start it again" in (sinks[1].result.error or "")
    assert bench.engine.healthy
    with pytest.raises(UnknownSessionError):
        bad.turn([1], FILL_OR_LENGTH, RecordingSink())
    bench.library.reject_requests = False
    assert bench.run(good, [1], FILL_OR_LENGTH)[1].end is TurnEnd.LENGTH


def test_a_text_id_that_is_sampled_is_an_error_not_speech(bench: PortBench, caplog: pytest.LogCaptureFixture) -> None:
    """The head without its bias: text ids get the score 0."""
    bench.library.choose = lambda ids, sampling: [3]
    ids, result = bench.run(bench.engine.open("a", GREEDY, 400), PROMPT, FILL_OR_LENGTH)
    assert ids == [] and result.end is TurnEnd.ERROR
    assert "the head's bias is lost" in caplog.text


def test_silence_is_a_failure(bench: PortBench) -> None:
    """A dead executor answers nothing and raises nothing."""
    session, sink = bench.engine.open("a", GREEDY, 400), RecordingSink()
    session.turn(PROMPT, FILL_OR_LENGTH, sink)
    bench.step()
    bench.library.is_silent = True
    bench.clock.now += STALL_S / 2
    look(bench)
    assert sink.result is None and bench.engine.healthy
    bench.clock.now += STALL_S
    look(bench)
    assert sink.result is not None and sink.result.end is TurnEnd.ERROR
    assert not bench.engine.healthy
    with pytest.raises(EngineError):
        bench.engine.open("b", GREEDY, 400)


def test_one_silent_request_ends_its_session_alone(bench: PortBench) -> None:
    sinks = [RecordingSink(), RecordingSink()]
    sessions = [bench.engine.open(name, GREEDY, 2000) for name in "ab"]
    sessions[0].turn(PROMPT, FILL_OR_LENGTH, sinks[0])
    bench.settle()
    bench.library.running.clear()  # lost
    bench.clock.now += STALL_S
    sessions[1].turn(PROMPT, TurnLimits(1000, forbidden=ALL_STOPS), sinks[1])
    bench.step()
    look(bench)
    assert sinks[0].result is not None and sinks[0].result.end is TurnEnd.ERROR
    assert sinks[1].result is None and bench.engine.healthy


def look(bench: PortBench) -> None:
    bench.engine._loop.call_soon_threadsafe(bench.engine._look_for_stalls)
    bench.settle()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were there, which cannot be imported."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.1")


@pytest.mark.usefixtures("installed")
def test_the_process_is_prepared_before_the_package_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI that started this process is forgotten, one device is visible, and there is no worker process."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv(SINGLE_PROCESS, "0")
    with pytest.raises(ConfigError, match="names 3 devices"):
        load_llmapi("cuda:3", MERGED)
    with pytest.raises(ConfigError, match="CUDA GPUs only"):
        load_llmapi("cpu", MERGED)
    with pytest.raises(ConfigError, match=r"cannot be imported \(ModuleNotFoundError"):
        load_llmapi("cuda:1", MERGED)
    assert "OMPI_COMM_WORLD_RANK" not in os.environ
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ[SINGLE_PROCESS]) == ("5", "1")


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_llm") is not None, reason="tensorrt_llm is installed")
def test_a_package_that_is_missing_or_of_another_version_is_one_sentence(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RuntimeConfig(engine="tensorrt_llm", model_dir=str(tiny_model_dir))
    with pytest.raises(ConfigError, match="needs the Python package tensorrt_llm 1.2"):
        make_engine(config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.4.0")
    with pytest.raises(ConfigError, match=r"TensorRT-LLM 1\.4\.0 is installed, and the engine was written for 1\.2"):
        make_engine(config)


@pytest.mark.usefixtures("installed")
def test_a_missing_engine_dir_is_said_before_anything_is_imported(tiny_model_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="'engine_dir' must name"):
        make_engine(RuntimeConfig(engine="tensorrt_llm", model_dir=str(tiny_model_dir)))
