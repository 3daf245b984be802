"""The metrics of a real server after real sessions, as an operator reads them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from bistream.keeper.server_process import TritonServer
from bistream.metrics.catalogue import ALL, HOP_STAGES, OUTER_STAGES, RECOMPUTED_TOKENS, REJECTED_STOPS, STAGES, TOKENS_STAGES, MetricType
from tests.formats import SAMPLE_RATE, SAMPLES_PER_TOKEN
from tests.triton.conftest import wait_for
from tests.triton.requests import Answer, Stream, ask
from tests.triton.scraping import Scrape, fresh_scrape, scrape, session_lines

MODEL = "cosyvoice2_bistream"
Voice = dict[str, Any]
TEXT = "Never to be logged."
OTHER_ENGINE = (RECOMPUTED_TOKENS, REJECTED_STOPS)  # of TensorRT-LLM, which this server does not run
SECONDS = 1e-6  # clock readings of one process add up exactly but for rounding


def increases(before: Scrape, after: Scrape, name: str, label: str = "", values: tuple[str, ...] = ("",)) -> list[float]:
    """Growth of a sample for each value of a label."""
    labels = [{label: value} if label else {} for value in values]
    return [after(name, **one) - before(name, **one) for one in labels]


def speak_in_pieces(grpc_url: str, voice: Voice) -> Answer:
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text="Piece by piece it comes, ", is_end=False, **voice)
        stream.receive(stream.send(MODEL, session_id=session_id, target_text="and ends.", is_start=False, is_end=True))
        return stream.receive(start)


def cancel_after_the_first_audio(grpc_url: str, voice: Voice) -> Answer:
    session_id = uuid.uuid4().hex
    with Stream(grpc_url) as stream:
        start = stream.send(MODEL, session_id=session_id, target_text="Nobody hears all of it. " * 8, is_end=False, **voice)
        stream.receive_audio(start)
        stream.receive(stream.send(MODEL, session_id=session_id, is_cancel=True))
        return stream.receive(start)


def test_metrics_agree_with_the_sessions(server: TritonServer, grpc_url: str, voice: Voice) -> None:
    before = idle_scrape(server)
    answers = [ask(grpc_url, MODEL, target_text=TEXT, session_id=f"metrics-{number}", **voice) for number in range(3)]
    answers.append(speak_in_pieces(grpc_url, voice))
    answers.append(cancel_after_the_first_audio(grpc_url, voice))
    assert ask(grpc_url, MODEL, session_id="nobody", target_text="more", is_start=False).code == "UNKNOWN_SESSION"
    after = idle_scrape(server)

    def grown(name: str, label: str = "", *values: str) -> list[float]:
        return increases(before, after, name, label, values or ("",))

    assert grown("bistream_session_starts_total") == [5]
    assert sum(grown("bistream_sessions_ended_total", "reason", "eos", "length")) == 4
    assert grown("bistream_sessions_ended_total", "reason", "cancelled", "disconnected", "engine_error") == [1, 0, 0]
    assert grown("bistream_session_cancels_total", "by", "request", "disconnect") == [1, 0]
    assert grown("bistream_requests_refused_total", "code", "UNKNOWN_SESSION", "BUSY") == [1, 0]
    assert grown("bistream_audio_ttfp_s_count", "text", "whole", "pieces", "offline") == [3, 2, 0]
    assert grown("bistream_audio_stage_s_count", "stage", *STAGES) == [5] * len(STAGES)
    check_stages(grown)
    check_audio_totals(grown, answers)


def idle_scrape(server: TritonServer) -> Scrape:
    """After the end of all sessions, with nothing missing."""
    wait_for(lambda: is_idle(fresh_scrape(server)), "the end of all sessions")
    return fresh_scrape(server)


def is_idle(now: Scrape) -> bool:
    sessions = sum(sample.value for sample in now.families["bistream_sessions"].samples)
    in_use = now("bistream_kv_blocks", state="used") + now("bistream_hop_queue_depth") + now("bistream_lm_queue_depth")
    return sessions + in_use == 0


def check_stages(grown: Any) -> None:
    """The outer stages are the whole way to the first audio; the inner ones take a part of theirs."""
    seconds = dict(zip(STAGES, grown("bistream_audio_stage_s_sum", "stage", *STAGES), strict=True))
    first_audio = sum(grown("bistream_audio_ttfp_s_sum", "text", "whole", "pieces"))
    assert all(value >= 0.0 for value in seconds.values())
    assert abs(sum(seconds[stage] for stage in OUTER_STAGES) - first_audio) < SECONDS * 100
    assert 0.0 < sum(seconds[stage] for stage in TOKENS_STAGES) <= seconds["tokens"]
    assert 0.0 < sum(seconds[stage] for stage in HOP_STAGES) <= seconds["hop"]


def check_audio_totals(grown: Any, answers: list[Answer]) -> None:
    heard_s = sum(answer.waveform.size for answer in answers) / SAMPLE_RATE
    (sent_s,) = grown("bistream_audio_seconds_total")
    (tokens,) = grown("bistream_speech_tokens_total")
    assert sent_s >= heard_s - SECONDS  # of the cancelled session more may have been sent than was received
    assert tokens >= sent_s * SAMPLE_RATE / SAMPLES_PER_TOKEN
    assert grown("bistream_audio_duration_s_count") == grown("bistream_audio_underrun_s_count") == [5]
    assert abs(grown("bistream_audio_duration_s_sum")[0] - sent_s) < SECONDS * 100
    chunks = sum(len(answer.outputs) for answer in answers)
    assert grown("bistream_audio_chunk_gap_s_count")[0] >= chunks - len(answers)
    assert grown("bistream_hops_total", "hop", "first") == [5]
    assert grown("bistream_lm_step_s_count") == grown("bistream_lm_step_rows_count")
    assert grown("bistream_lm_step_rows_sum")[0] >= tokens
    assert all(0 <= value <= 5 for value in grown("bistream_audio_continuity_ok_total", "threshold_ms", "20", "100"))


def test_every_family_is_exported_and_parses(server: TritonServer) -> None:
    found = scrape(server).families
    for family in set(ALL) - set(OTHER_ENGINE):
        name = family.name.removesuffix("_total") if family.kind is MetricType.COUNTER else family.name
        assert found[name].type == family.kind.value, name
        if family.kind is MetricType.HISTOGRAM:
            check_histogram(found[name].samples, family.name)
    foreign = {name for name in found if name.startswith("bistream_")} - {family.name.removesuffix("_total") for family in ALL}
    assert not foreign, "a metric that families.py does not list"
    ours = [sample for name, family in found.items() if name.startswith("bistream_") for sample in family.samples]
    known = {name for family in ALL for name in family.labels} | {"le"}
    assert all(set(sample.labels) <= known for sample in ours)


def check_histogram(samples: Any, name: str) -> None:
    """Cumulative buckets up to infinity, which holds everything."""
    series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    counts: dict[frozenset[tuple[str, str]], float] = {}
    for sample in samples:
        key = frozenset(item for item in sample.labels.items() if item[0] != "le")
        if sample.name == f"{name}_bucket":
            series.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name == f"{name}_count":
            counts[key] = sample.value
    for key, buckets in series.items():
        assert buckets == sorted(buckets) and [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), counts[key])


def test_the_tier_of_every_network_is_a_metric(server: TritonServer) -> None:
    """Two processes contribute to one family."""
    tiers = {sample.labels["stage"]: sample.labels["tier"] for sample in scrape(server).families["bistream_tier"].samples}
    assert tiers == {"language_model": "plain", "flow": "plain", "vocoder": "plain"}


def test_a_session_leaves_one_line_without_its_text(server: TritonServer, grpc_url: str, voice: Voice) -> None:
    session_id = f"line-{uuid.uuid4().hex}"
    answer = ask(grpc_url, MODEL, target_text=TEXT, session_id=session_id, **voice)
    log = server.settings.log_path
    assert log is not None
    wait_for(lambda: any(line["id"] == session_id for line in session_lines(log)), "the line of the session")
    (line,) = (line for line in session_lines(log) if line["id"] == session_id)
    assert (line["voice"], line["text"], line["characters"]) == ("recording", "whole", len(TEXT))
    assert line["audio_s"] == pytest.approx(answer.waveform.size / SAMPLE_RATE, abs=1e-3)
    assert line["tokens"] == answer.waveform.size // SAMPLES_PER_TOKEN
    assert line["reason"] in ("eos", "length") and 0 < line["first_audio_s"]
    assert sum(line["stages_ms"].values()) == pytest.approx(1000 * line["first_audio_s"], abs=1.0)
    assert TEXT not in log.read_text(encoding="utf-8")
