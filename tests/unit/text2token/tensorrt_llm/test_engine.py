"""What the engine asks of TensorRT-LLM, what it counts, and what it does when TensorRT-LLM fails. Over the port."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from bistream.errors import EngineError, InvalidInputError, UnknownSessionError
from bistream.metrics import families
from bistream.metrics.recorder import Recorder
from bistream.text2token.engine import SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.interleave import Interleaver
from bistream.text2token.tensorrt_llm.api import FORBIDDEN_BIAS, SINGLE_PROCESS, load_api
from bistream.text2token.tensorrt_llm.engine import STALL_S, TensorRtLlmEngine
from bistream.text2token.tensorrt_llm.request_maker import make_llm
from tests.fakes import RecordingSink
from tests.recorded import sample
from tests.unit.text2token.tensorrt_llm.bench import MERGED, SIZES, FakeClock, PortBench
from tests.unit.text2token.tensorrt_llm.port import Choose, KvCacheConfig, Port, SamplingParams
from tests.unit.text2token.tiny import SPACE

GREEDY = SamplingSpec(temperature=0.0)
ALL_STOPS = frozenset(SPACE.specials)
FILL_OR_LENGTH = TurnLimits(15, forbidden=ALL_STOPS - {SPACE.fill}, record_on_length=SPACE.fill)
PROMPT = [SPACE.sos, *range(1, 40)]
EOS, SECOND, FILL = MERGED.to_merged(SPACE.specials)


def speech_only(ids: list[int], sampling: SamplingParams) -> Sequence[int]:
    return [MERGED.speech_offset + len(ids) % SPACE.speech_token_size]


def stop_after(count: int, stop_id: int) -> Choose:
    """``stop_id`` is preferred at every multiple of ``count`` ids."""

    def choose(ids: list[int], sampling: SamplingParams) -> Sequence[int]:
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


def recording(bench: PortBench, recorder: Recorder) -> PortBench:
    """The same bench with an engine that counts into ``recorder``."""
    bench.engine.close()
    bench.port.is_shut_down = False
    api = bench.port.api()
    llm = make_llm(api, "merged", "bfloat16", SIZES)
    bench.engine = TensorRtLlmEngine(api, llm, MERGED, SIZES, retention_s=60.0, recorder=recorder, clock=bench.clock)
    return bench


def test_a_turn_is_one_request_with_the_whole_sequence_as_prompt(bench: PortBench) -> None:
    session = bench.engine.open("a", SamplingSpec(top_k=25, top_p=0.8, temperature=0.7), 400)
    first, _ = bench.run(session, PROMPT, FILL_OR_LENGTH)
    bench.run(session, [5, 6, 7, 8, 9], FILL_OR_LENGTH)
    (one, sampling), (two, _) = bench.port.requests
    assert one == MERGED.to_merged(PROMPT)
    assert two == MERGED.to_merged([*PROMPT, *first, 5, 6, 7, 8, 9])
    assert (sampling.end_id, sampling.stop_token_ids, sampling.max_tokens) == (EOS, [SECOND, FILL], 15)
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (25, 0.8, 0.7)
    assert sampling.embedding_bias is None and not sampling.detokenize and sampling.seed is None


def test_the_llm_is_made_with_room_for_closed_sessions_and_queues_nothing_that_was_admitted(bench: PortBench) -> None:
    args = bench.port._args
    assert args.model == "merged" and args.max_batch_size == SIZES.max_sessions and args.max_seq_len == SIZES.longest_sequence
    assert args.kv_cache_config == KvCacheConfig(
        max_tokens=2 * SIZES.kv_tokens, host_cache_size=0, tokens_per_block=SIZES.tokens_per_block, event_buffer_max_size=0
    )
    assert args.cuda_graph_config is not None and args.cuda_graph_config.batch_sizes == [1, 2, 4, 6]


def test_a_later_version_is_told_to_use_the_manager_that_keeps_decoded_ids() -> None:
    told: list[object] = []

    class Later(KvCacheConfig):
        def __init__(self, use_kv_cache_manager_v2: object = "auto", **kwargs: object) -> None:
            told.append(use_kv_cache_manager_v2)
            super().__init__(**kwargs)  # type: ignore[arg-type]

    port = Port(MERGED, speech_only)
    make_llm(port.api(KvCacheConfig=Later, has_manager_choice=True), "merged", "auto", SIZES)
    assert told == [False]


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
    bench = recording(PortBench(stop_after(45, EOS)), recorder)
    session = bench.engine.open("a", GREEDY, 400)
    ids, result = bench.run(session, PROMPT, FILL_OR_LENGTH)
    assert (len(ids), result) == (15, TurnResult(TurnEnd.LENGTH))
    (_, first), (again, masked), (rest, last) = bench.port.requests
    assert (first.max_tokens, masked.max_tokens, last.max_tokens) == (15, 1, 9)
    assert again == MERGED.to_merged([*PROMPT, *ids[:5]]) and rest == MERGED.to_merged([*PROMPT, *ids[:6]])
    bias = masked.embedding_bias
    assert len(bias) == MERGED.vocab_size and [int(one) for one in (bias < 0).nonzero().flatten()] == [EOS, SECOND]
    assert float(bias[EOS]) == pytest.approx(FORBIDDEN_BIAS) and first.embedding_bias is last.embedding_bias is None
    assert counted(recorder, families.REJECTED_STOPS.name) == 1
    bench.close()


def test_one_mask_serves_all_requests_that_forbid_the_same(bench: PortBench) -> None:
    bench.port.choose = stop_after(15, EOS)
    session = bench.engine.open("a", GREEDY, 400)
    bench.run(session, PROMPT, TurnLimits(60, forbidden=ALL_STOPS))
    biases = [sampling.embedding_bias for _, sampling in bench.port.requests if sampling.embedding_bias is not None]
    assert len(biases) >= 3 and len({id(bias) for bias in biases}) == 1


def test_a_mask_that_is_not_honoured_ends_the_session(bench: PortBench) -> None:
    bench.port.ignores_bias = True
    bench.port.choose = lambda ids, sampling: [EOS]
    ids, result = bench.run(bench.engine.open("a", GREEDY, 400), PROMPT, FILL_OR_LENGTH)
    assert ids == [] and result.end is TurnEnd.ERROR and result.error
    assert bench.engine.healthy


def counted(recorder: Recorder, name: str) -> float:
    return sample(recorder, name.removeprefix("bistream_"))


@pytest.mark.parametrize(("manager", "expected"), [("v1", 0), ("v2", 5 * 15)])
def test_recomputed_tokens_are_counted(manager: str, expected: int, recorder: Recorder) -> None:
    """V1 computes what is new; V2 keeps prompts alone, so every later turn computes the answer of the one before again."""
    bench = recording(PortBench(speech_only, manager=manager), recorder)
    session = bench.engine.open("a", GREEDY, 400)
    for turn in range(6):
        bench.run(session, PROMPT if turn == 0 else [1, 2, 3, 4, 5], FILL_OR_LENGTH)
    recomputed = counted(recorder, families.RECOMPUTED_TOKENS.name)
    assert expected <= recomputed <= expected + 5 * (manager == "v2")  # V2 computes a prompt's last id again, too
    assert counted(recorder, families.SPEECH_TOKENS.name) == 6 * 15
    bench.close()


def test_a_displaced_prefix_is_computed_again_and_changes_nothing(recorder: Recorder) -> None:
    bench, undisturbed = recording(PortBench(), recorder), PortBench()
    results = []
    for each in (bench, undisturbed):
        session = each.engine.open("a", GREEDY, 400)
        ids: list[int] = []
        for turn in range(4):
            ids += each.run(session, PROMPT if turn == 0 else [turn, 2, 3, 4, 5], FILL_OR_LENGTH)[0]
            if each is bench:
                bench.port.cache.forget()
        results.append(ids)
    assert results[0] == results[1]
    assert counted(recorder, families.RECOMPUTED_TOKENS.name) > 3 * len(PROMPT)
    bench.close()
    undisturbed.close()


def test_sessions_with_one_voice_share_its_prefix(bench: PortBench) -> None:
    for name in "ab":
        bench.run(bench.engine.open(name, GREEDY, 400), PROMPT, FILL_OR_LENGTH)
    assert bench.port.cache.num_used < 2 * 4


def test_a_layout_speaks_over_it() -> None:
    """The bi-stream layout, whose rules are what rejection is for: eos in blocks, fill in the final phase."""
    bench = PortBench()
    layout = Interleaver(SPACE, [1, 2, 3], [SPACE.speech_offset + 7] * 4, max_ids=600)
    session = bench.engine.open("a", SamplingSpec(), 600)
    layout.push_text(list(range(10, 40)))
    layout.end_text()
    fed: list[int] = []
    while not layout.done and (turn := layout.next_turn()) is not None:
        ids, result = bench.run(session, turn.append_ids, turn.limits)
        layout.turn_ended(ids, result)
        fed += [*turn.append_ids, *ids]
    assert layout.done and layout.num_text_used == 30
    assert layout.ledger == fed
    bench.close()


def test_a_cancel_reaches_tensorrt_llm(bench: PortBench) -> None:
    session = bench.engine.open("a", GREEDY, 2000)
    sink = RecordingSink()
    session.turn(PROMPT, TurnLimits(1900, forbidden=ALL_STOPS), sink)
    bench.step()
    session.cancel()
    bench.settle()
    assert sink.result == TurnResult(TurnEnd.CANCELLED)
    bench.step()
    assert bench.port.num_active == 0 and len(sink.ids) <= 2


def test_a_cancel_before_the_request_is_made_needs_no_request(bench: PortBench) -> None:
    session = bench.engine.open("a", GREEDY, 2000)
    sink = RecordingSink()
    session.turn(PROMPT, FILL_OR_LENGTH, sink)
    session.cancel()
    bench.drive([sink])
    assert sink.result == TurnResult(TurnEnd.CANCELLED)
    bench.step()
    assert bench.port.num_active == 0


def test_a_request_that_is_refused_ends_its_session_alone(bench: PortBench) -> None:
    good, bad = bench.engine.open("good", GREEDY, 400), bench.engine.open("bad", GREEDY, 400)
    sinks = [RecordingSink(), RecordingSink()]
    good.turn(PROMPT, FILL_OR_LENGTH, sinks[0])
    bench.step()
    bench.port.reject_requests = True
    bad.turn(PROMPT, FILL_OR_LENGTH, sinks[1])
    bench.drive(sinks)
    assert sinks[0].result == TurnResult(TurnEnd.LENGTH)
    assert sinks[1].result is not None and sinks[1].result.end is TurnEnd.ERROR and "start it again" in (sinks[1].result.error or "")
    assert bench.engine.healthy
    with pytest.raises(UnknownSessionError):
        bad.turn([1], FILL_OR_LENGTH, RecordingSink())
    bench.port.reject_requests = False
    assert bench.run(good, [1], FILL_OR_LENGTH)[1].end is TurnEnd.LENGTH


def test_a_text_id_that_is_sampled_is_an_error_not_speech(bench: PortBench, caplog: pytest.LogCaptureFixture) -> None:
    """The head without its bias: text ids get the score 0."""
    bench.port.choose = lambda ids, sampling: [3]
    ids, result = bench.run(bench.engine.open("a", GREEDY, 400), PROMPT, FILL_OR_LENGTH)
    assert ids == [] and result.end is TurnEnd.ERROR
    assert "the head's bias is lost" in caplog.text


def test_a_text_id_outside_the_merged_vocabulary_is_refused(bench: PortBench) -> None:
    session = bench.engine.open("a", GREEDY, 400)
    with pytest.raises(InvalidInputError, match="Text id 190"):
        session.turn([190], FILL_OR_LENGTH, RecordingSink())
    bench.engine.check_integrity()
    bench.run(session, [1], FILL_OR_LENGTH)


def test_silence_is_a_failure(bench: PortBench) -> None:
    """A dead executor answers nothing and raises nothing."""
    session, sink = bench.engine.open("a", GREEDY, 400), RecordingSink()
    session.turn(PROMPT, FILL_OR_LENGTH, sink)
    bench.step()
    bench.port.is_silent = True
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
    bench.port._waiting.clear()  # lost
    bench.clock.now += STALL_S
    sessions[1].turn(PROMPT, TurnLimits(1000, forbidden=ALL_STOPS), sinks[1])
    bench.step()
    look(bench)
    assert sinks[0].result is not None and sinks[0].result.end is TurnEnd.ERROR
    assert sinks[1].result is None and bench.engine.healthy


def look(bench: PortBench) -> None:
    bench.engine._loop.call_soon_threadsafe(bench.engine._look_for_stalls)
    bench.settle()


def test_it_says_at_its_start_what_it_ignores(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench = PortBench()
    assert "ignores seeds" in caplog.text
    assert not bench.engine.capabilities.seeded and not bench.engine.capabilities.repetition_aware
    bench.close()


def test_a_shutdown_that_fails_does_not_keep_the_engine_alive(caplog: pytest.LogCaptureFixture) -> None:
    port = Port(MERGED, speech_only)
    api = port.api()
    llm = make_llm(api, "merged", "auto", SIZES)
    llm.shutdown = lambda: 1 // 0
    engine = TensorRtLlmEngine(api, llm, MERGED, replace(SIZES, max_sessions=2), retention_s=1.0, clock=FakeClock())
    engine.close()
    assert "could not be shut down" in caplog.text


def test_the_process_is_prepared_before_the_package_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI that started this process is forgotten, one device is visible, and there is no worker process."""
    import os  # noqa: PLC0415

    from bistream.errors import ConfigError  # noqa: PLC0415

    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv(SINGLE_PROCESS, "0")
    with pytest.raises(ConfigError, match="names 3 devices"):
        load_api("cuda:3", MERGED)
    with pytest.raises(ConfigError, match="CUDA GPUs only"):
        load_api("cpu", MERGED)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as where it is not installed
    with pytest.raises(ConfigError, match="needs the Python package"):
        load_api("cuda:1", MERGED)
    assert "OMPI_COMM_WORLD_RANK" not in os.environ
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ[SINGLE_PROCESS]) == ("5", "1")
