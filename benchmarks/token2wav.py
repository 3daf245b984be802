"""Speed of token2wav (flow and vocoder) on random weights: hops of one and of many sessions together, sustained load.

    python benchmarks/token2wav.py [--family cosyvoice2|cosyvoice3] [--size full|tiny] [--device auto] [--out FILE]

A hop takes a session's new speech tokens through flow and vocoder to audio on the host; times are wall times, medians.
First hop: 18 new tokens (15 spoken, 3 lookahead; 12 spoken where noted), the voice's state cached, prompts of random lengths from 2 to
10 s. The prompt's tokens after its last chunk of 25 that was complete with its lookahead are computed with the first hop: 1 to 25 of
them, and always 25 in the table by prompt length, whose prompts are whole chunks (the worst case). Steady hop: 25 tokens that end on
a chunk boundary, as the hop policy chooses them, with 10 s of stored context; and 100 tokens, its longest hop.
The flow's state takes at most ``STATE_SHARE`` of the free memory. Where the planned sessions do not fit, the largest number that fits is
measured instead, and the result records it.
Naive: eager, the whole prefix recomputed in every hop, one session at a time.
Prints tables; the last line is one JSON object. ``--size tiny`` runs on a CPU in seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import percentiles, report, table
from benchmarks._token2wav_load import Load, LoadResult
from benchmarks._token2wav_rig import FIRST_HOP_TOKENS, SIZES, SMALL_FIRST_HOP_TOKENS, Rig, random_model
from bistream.checkpoint_config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.family import COSYVOICE2
from bistream.rates import CHUNK_TOKENS, SPEECH_TOKENS_PER_SECOND
from bistream.token2mel.pages import memory_bytes

PROMPT_S = 3.0
FIRST_HOP_PROMPT_S = (2.0, 10.0)
CONTEXT_S = 10.0
LONG_HOP_CHUNKS, MOST_LONG_HOPS = 4, 64  # more sessions would need more state than ``Plan`` counts
GROWTH_S = (2.0, 20.0)  # of speech, after the prompt


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured at one size. Context of the growth measurement includes the prompt. flow_state_mb: upper bound."""

    sessions: tuple[int, ...]
    prompts_s: tuple[float, ...]
    growth_sessions: tuple[int, ...]
    load_sessions: tuple[int, ...]
    load_voices: int
    load_warm_s: float
    load_measured_s: float
    speech_s: tuple[float, float]
    flow_state_mb: int
    naive_hops: int
    repeats: int


PLANS = {
    "full": Plan((1, 8, 64, 256), (2.0, 3.0, 5.0, 10.0), (1, 64), (256, 320), 16, 8.0, 12.0, (4.0, 20.0), 100_000, 3, 7),
    "tiny": Plan((1, 4), (2.0,), (1,), (4,), 2, 0.5, 1.0, (1.0, 3.0), 256, 1, 2),
}


STATE_SHARE = 0.8  # the rest is for the vocoder, recorded graphs and activations


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(SIZES), default=COSYVOICE2.name)
    parser.add_argument("--size", choices=sorted(PLANS), default="full")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the flow: auto, float16, bfloat16 or float32")
    parser.add_argument("--kernels", default="auto", choices=["auto", "kernels", "graphs", "plain"], help="which tier computes")
    parser.add_argument("--parts", default="hops,growth,load,quality,naive", help="what to measure, separated by commas")
    parser.add_argument("--out", help="file for the result")
    options = parser.parse_args(arguments)
    name = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    device, sizes = torch.device(name), SIZES[options.family][options.size]
    asked = PLANS[options.size]
    plan = dataclasses.replace(asked, flow_state_mb=min(asked.flow_state_mb, int(STATE_SHARE * memory_bytes(device)[0]) >> 20))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the references are float32
    config = RuntimeConfig(device=name, dtype=options.dtype, kernels=options.kernels, flow_state_mb=plan.flow_state_mb, max_sessions=512)
    parts = set(options.parts.split(","))
    metrics: dict[str, Any] = {}
    with random_model(sizes, device) as directory:
        if "quality" in parts:
            metrics |= measure_quality(directory, config, sizes)
        if "naive" in parts:
            metrics |= measure_naive(directory, config, sizes, plan)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        rig = Rig(directory, sizes, config)
        metrics |= {
            "startup_s": round(rig.startup_s, 1),
            "state_mb_per_audio_s": round(rig.flow.page_bytes / 1e6, 2),
            "state_audio_s": rig.flow.pool.total * CHUNK_TOKENS / SPEECH_TOKENS_PER_SECOND,
        }
        plan = fitting_plan(plan, rig.flow.pool.total, rig.flow.reserve_chunks)
        if "hops" in parts:
            metrics |= measure_hops(rig, plan)
        if "growth" in parts:
            metrics |= measure_growth(rig, plan)
        if "load" in parts:
            metrics |= measure_load(rig, plan)
        if device.type == "cuda":
            metrics["gpu_memory_gb"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 1)
            metrics["gpu_memory_reserved_gb"] = round(torch.cuda.max_memory_reserved(device) / 1e9, 1)
    derive(metrics)
    described = {
        "family": options.family,
        "size": options.size, "dtype": str(rig.flow.dtype).removeprefix("torch."), "kernels": config.kernels, "prompt_s": PROMPT_S,
        "first_hop_prompt_s": FIRST_HOP_PROMPT_S,
        "first_hop_tokens": FIRST_HOP_TOKENS, "steady_hop_tokens": CHUNK_TOKENS, "steady_context_s": CONTEXT_S, **dataclasses.asdict(plan),
    }  # fmt: skip
    fields = ("sessions", "growth_sessions", "load_sessions")
    described["reduced_from"] = {field: getattr(asked, field) for field in fields if getattr(asked, field) != getattr(plan, field)}
    report("token2wav", device, described, metrics, options.out)


def fitting_plan(plan: Plan, pages: int, reserve: int) -> Plan:
    """The plan with session counts whose state fits in ``pages`` (one second each), of which a session reserves ``reserve``."""

    def fitting(counts: Sequence[int], speech_s: float, voices_s: float) -> tuple[int, ...]:
        largest = max(1, int(pages - voices_s) // max(reserve, round(speech_s) + 2))  # 2: the hops around the target context
        found = tuple(sorted({min(count, largest) for count in counts}))
        if found != tuple(counts):
            print(f"flow state for {pages} s of audio: {found} sessions instead of {tuple(counts)}")
        return found

    longest = plan.load_voices * (FIRST_HOP_PROMPT_S[1] + 1)
    return dataclasses.replace(
        plan,
        sessions=fitting(plan.sessions, CONTEXT_S - PROMPT_S, longest),
        growth_sessions=fitting(plan.growth_sessions, GROWTH_S[1], 8 * PROMPT_S),
        load_sessions=fitting(plan.load_sessions, 0.0, longest),
    )


def measure_hops(rig: Rig, plan: Plan) -> dict[str, Any]:
    first: dict[str, float] = {}
    steady: dict[str, float] = {}
    long: dict[str, float] = {}
    small: dict[str, float] = {}
    heading = f"of {LONG_HOP_CHUNKS} chunks"
    rows: list[list[object]] = [["sessions", "first hop ms", "with 12 spoken", "steady hop ms", heading, "audio s per s", heading]]
    voices = rig.voices(plan.load_voices, FIRST_HOP_PROMPT_S)
    for count in plan.sessions:
        first[str(count)] = round(rig.first_hop_ms(count, voices, plan.repeats), 2)
        small[str(count)] = round(rig.first_hop_ms(count, voices, plan.repeats, SMALL_FIRST_HOP_TOKENS), 2)
        steady[str(count)] = round(rig.steady_hops_ms(count, PROMPT_S, [CONTEXT_S])[0], 2)
        row = [count, first[str(count)], small[str(count)], steady[str(count)], "", round(count / steady[str(count)] * 1e3, 1), ""]
        if count <= MOST_LONG_HOPS:
            taken = rig.steady_hops_ms(count, PROMPT_S, [CONTEXT_S], LONG_HOP_CHUNKS)[0]
            long[str(count)] = row[4] = round(taken, 2)
            row[6] = round(LONG_HOP_CHUNKS * count / taken * 1e3, 1)
        rows.append(row)
    table(rows)
    by_prompt: dict[str, dict[str, float]] = {}
    rows = [["prompt s", *(f"first hop ms, {count}" for count in plan.sessions[:3:2])]]
    for prompt_s in plan.prompts_s:
        alike = [rig.prompt(prompt_s, seed) for seed in range(8)]
        found = {str(count): round(rig.first_hop_ms(count, alike, plan.repeats), 2) for count in plan.sessions[:3:2]}
        by_prompt[f"{prompt_s:g}"] = found
        rows.append([prompt_s, *found.values()])
    table(rows)
    largest = max(count for count in plan.sessions if count <= 64)
    seconds = CHUNK_TOKENS / SPEECH_TOKENS_PER_SECOND
    return {
        "first_hop_ms": first,
        "first_hop_ms_12_spoken": small,
        "steady_hop_ms": steady,
        f"steady_hop_ms_{LONG_HOP_CHUNKS}_chunks": long,
        "first_hop_ms_by_prompt_s": by_prompt,
        "audio_s_per_s": round(largest * seconds / steady[str(largest)] * 1e3, 1),
    }


def measure_growth(rig: Rig, plan: Plan) -> dict[str, Any]:
    """Time of the steady hop with 20 s of speech over that with 2 s, per number of sessions."""
    growth: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    for count in plan.growth_sessions:
        found = rig.steady_hops_ms(count, PROMPT_S, [PROMPT_S + seconds for seconds in GROWTH_S])
        times[str(count)] = [round(value, 2) for value in found]
        growth[str(count)] = round(found[1] / found[0], 2)
    table([["sessions", *(f"hop ms at {seconds:g} s" for seconds in GROWTH_S), "growth"], *([k, *times[k], growth[k]] for k in times)])
    return {"hop_growth_20s_over_2s": growth, "hop_ms_at_2s_and_20s": times}


def measure_load(rig: Rig, plan: Plan) -> dict[str, Any]:
    """The largest tested number of real-time sessions with at least 99.9 % of the hops on time."""
    results: list[LoadResult] = []
    rows: list[list[object]] = [["sessions", "in time", "device busy", "first hop p50 ms", "p99", "audio s per s"]]
    for count in plan.load_sessions:
        voices = [rig.prompt(2.0 + 8.0 * index / plan.load_voices, seed=100 + index) for index in range(plan.load_voices)]
        for voice in voices:
            rig.flow.warm(voice)
        result = Load(rig, voices, count, plan.speech_s).run(plan.load_warm_s, plan.load_measured_s)
        results.append(result)
        first = percentiles(result.first_ms, 50, 99) if result.first_ms else {"p50": 0.0, "p99": 0.0}
        pace = round(result.audio_s / result.seconds, 1)
        rows.append([count, round(result.on_time, 5), round(result.busy, 3), first["p50"], first["p99"], pace])
    table(rows)
    kept = [result for result in results if result.on_time >= 0.999]
    best = kept[-1] if kept else results[0]
    return {
        "sustained_sessions": best.sessions if kept else 0,
        "sustained_in_time": round(best.on_time, 5),
        "sustained_device_busy": round(best.busy, 3),
        "sustained_first_hop_ms": percentiles(best.first_ms, 50, 99) if best.first_ms else {},
    }


def measure_quality(directory: str, config: RuntimeConfig, sizes: CheckpointConfig) -> dict[str, Any]:
    """Signal-to-noise ratio of mel and audio against the plain network in float32, over one session's hops."""
    small = dataclasses.replace(config, flow_state_mb=min(4000, config.flow_state_mb))
    exact = Rig(directory, sizes, dataclasses.replace(small, dtype="float32", kernels="plain"))
    rig = Rig(directory, sizes, small)
    mels, waves = [], []
    for each in (exact, rig):
        session = each.open(each.prompt(PROMPT_S))
        counts = [FIRST_HOP_TOKENS, 10, 25, 50, 25, 12]
        ends = [index == len(counts) - 1 for index in range(len(counts))]
        hops = [each.hop([session], [count], [end])[0].float().cpu() for count, end in zip(counts, ends, strict=True)]
        mels.append(torch.cat(hops, dim=1))
        session.close()
    for each in (exact, rig):  # the same mel through both vocoders
        state = each.vocoder.open(1)
        parts = torch.split(mels[0].to(each.device), 50, dim=1)
        waves.append(torch.cat([torch.from_numpy(each.vocode(state, mel, index == len(parts) - 1)) for index, mel in enumerate(parts)]))
        state.close()
    found = {"mel_snr_db_vs_fp32": round(snr_db(mels[1], mels[0]), 1), "audio_snr_db_vs_fp32": round(snr_db(waves[1], waves[0]), 1)}
    print("signal-to-noise ratio against float32, dB:", found)
    return found


def snr_db(found: torch.Tensor, exact: torch.Tensor) -> float:
    error = (found.double() - exact.double()).square().sum()
    return float(10 * torch.log10(exact.double().square().sum() / error.clamp(min=1e-30)))


def measure_naive(directory: str, config: RuntimeConfig, sizes: CheckpointConfig, plan: Plan) -> dict[str, Any]:
    """The same steady hop, computed eagerly over the whole prefix, one session after another. 64 sessions: 64 times one."""
    rig = Rig(directory, sizes, config, naive=True)
    session = rig.open(rig.prompt(PROMPT_S))
    rig.hop([session], [int((CONTEXT_S - PROMPT_S) * SPEECH_TOKENS_PER_SECOND) + 3])
    times = [rig.time_ms(lambda: rig.hop([session], [CHUNK_TOKENS])) for _ in range(plan.naive_hops + 1)]
    session.close()
    one = statistics.median(times[1:]) if len(times) > 1 else times[0]
    print(f"naive steady hop: {one:.1f} ms for one session")
    return {"naive_steady_hop_ms": {"1": round(one, 1), "64": round(64 * one, 1)}}


def derive(metrics: dict[str, Any]) -> None:
    """Adds the metrics that combine two measurements."""
    if "naive_steady_hop_ms" in metrics and "64" in metrics.get("steady_hop_ms", {}):
        metrics["naive_over_ours_64"] = round(metrics["naive_steady_hop_ms"]["64"] / metrics["steady_hop_ms"]["64"], 1)


if __name__ == "__main__":
    main()
