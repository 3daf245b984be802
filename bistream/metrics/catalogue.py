"""Every metric that a server exports: name, kind, labels, buckets. Pure data.

Recorders accept only families of ``ALL``, so the documents, the dashboard and the alerts can be checked against this list
(``tests/unit/metrics/test_documents.py``). Labels have few, fixed values: never a session, a caller or a text.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from bistream.errors import ERRORS_BY_CODE

Labels = tuple[str, ...]  # values, in the order of a family's label names


class MetricType(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, eq=False)
class MetricFamily:
    """labels: each label with its values; a label without values (a model's name) exists only once it is recorded.

    buckets: upper bounds, ascending, without infinity.
    """

    name: str
    kind: MetricType
    help: str
    labels: Mapping[str, Labels] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def known_labels(self) -> tuple[Labels, ...]:
        """Series that exist from the start with the value 0, so that a rate sees their first event."""
        return tuple(itertools.product(*self.labels.values()))


def _histogram(name: str, help: str, buckets: tuple[float, ...], **labels: Labels) -> MetricFamily:
    return MetricFamily(f"bistream_{name}", MetricType.HISTOGRAM, help, labels, buckets)


def _counter(name: str, help: str, **labels: Labels) -> MetricFamily:
    return MetricFamily(f"bistream_{name}", MetricType.COUNTER, help, labels)


def _gauge(name: str, help: str, **labels: Labels) -> MetricFamily:
    return MetricFamily(f"bistream_{name}", MetricType.GAUGE, help, labels)


_MILLISECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15)
_WAIT_S = (0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
_LENGTHS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
_TEXT_MODES = ("whole", "pieces", "offline")

OUTER_STAGES = ("voice", "tokens", "hop", "send")  # add up to the time to the first audio
TOKENS_STAGES = ("text", "lm_queue", "first_token", "first_hop_tokens")  # inside "tokens"; what is left is the way between processes
HOP_STAGES = ("hop_queue", "hop_compute")  # inside "hop"
STAGES = OUTER_STAGES + TOKENS_STAGES + HOP_STAGES
CONTINUITY_THRESHOLDS_MS = (20, 100)
END_REASONS = ("eos", "length", "disconnected", "internal", *(code.lower() for code in ERRORS_BY_CODE))
ERROR_CODES = ("INTERNAL", *ERRORS_BY_CODE)

# cosyvoice2_bistream, of the sessions of all front models
AUDIO_TTFP = _histogram(
    "audio_ttfp_s",
    "Seconds from a session's start request to its first audio, as handed to the server",
    (*_MILLISECONDS[6:], *_WAIT_S),
    text=_TEXT_MODES,
)
AUDIO_STAGE = _histogram("audio_stage_s", "Seconds of the first audio by stage", (*_MILLISECONDS, *_WAIT_S[1:10]), stage=STAGES)
AUDIO_CHUNK_GAP = _histogram(
    "audio_chunk_gap_s", "Seconds between two chunks of a session, as sent", (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
)
AUDIO_UNDERRUN = _histogram(
    "audio_underrun_s",
    "Seconds a session's listener had nothing to play after the first audio, by the model of the listener's buffer",
    (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
AUDIO_CONTINUITY_OK = _counter(
    "audio_continuity_ok_total",
    "Sessions with audio whose listener's longest underrun did not exceed the threshold",
    threshold_ms=tuple(map(str, CONTINUITY_THRESHOLDS_MS)),
)
AUDIO_DURATION = _histogram("audio_duration_s", "Audio seconds of a session", _LENGTHS_S)
AUDIO_RTF = _histogram(
    "audio_rtf",
    "Real-time factor of a session: seconds from its start to its last audio, per second of audio",
    (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0),
    text=_TEXT_MODES,
)
AUDIO_SECONDS = _counter("audio_seconds_total", "Audio seconds sent")
TEXT_CHARACTERS = _counter("text_characters_total", "Characters of text of ended sessions")
SESSION_STARTS = _counter("session_starts_total", "Sessions admitted")
SESSIONS_ENDED = _counter("sessions_ended_total", "Sessions ended, by reason", reason=END_REASONS)
SESSION_CANCELS = _counter("session_cancels_total", "Sessions ended early by their client", by=("request", "disconnect"))
REQUESTS_REFUSED = _counter("requests_refused_total", "Starts, pieces and cancels refused, by error code", code=ERROR_CODES)
SESSIONS = _gauge(
    "sessions",
    "Sessions that hold resources, by state; closed, cancelled and failed ones are being freed",
    state=("opening", "receiving", "speaking", "finishing", "closed", "cancelled", "failed"),
)
LOAD = _gauge("load", "Audio seconds per second promised to live sessions, over those that token2wav can make; 0 before it is known")
DELIVERY_QUEUE = _gauge("delivery_queue_depth", "Sessions whose text or lease renewal is on its way to the language model")

# llm_bistream
LM_STEP_ROWS = _histogram("lm_step_rows", "Rows of a step of the language model", _SIZES)
LM_STEP = _histogram("lm_step_s", "Seconds of a step of the language model, without overlap with the step before", _MILLISECONDS)
LM_STEPS = _counter("lm_steps_total", "Steps: for everybody, or short ones for those who wait", kind=("full", "short"))
LM_SEQUENCES = _gauge("lm_sequences", "Sequences of the language model: in a turn, or waiting for text", state=("running", "parked"))
LM_QUEUE = _gauge("lm_queue_depth", "Turns of the language model with ids that no step has taken yet")
KV_BLOCKS = _gauge("kv_blocks", "Blocks of the KV cache, reserved by sessions or available", state=("used", "free"))
SPEECH_TOKENS = _counter("speech_tokens_total", "Speech tokens sampled, stop ids included")
RECOMPUTED_TOKENS = _counter("lm_recomputed_tokens_total", "Tokens whose keys and values were computed again (engine tensorrt_llm)")
LM_RUNAWAYS = _counter(
    "lm_runaways_total",
    "Turns whose tokens repeat (loop), hardly vary (stuck) or do not end with the text (no_end): drawn again in time, or given up",
    kind=("loop", "stuck", "no_end"),
    outcome=("redrawn", "ended"),
)
LM_CONTINUED = _counter(
    "lm_continued_sessions_total",
    "Sessions that name an earlier one: its last sentence joined the prompt, was left out as too long, or is not known",
    outcome=("joined", "left_out", "unknown"),
)
REJECTED_STOPS = _counter("lm_rejected_stops_total", "Stop ids that were not allowed, so the turn asked again (engine tensorrt_llm)")

# token2wav
HOP_BATCH_SIZE = _histogram("hop_batch_size", "Hops computed together", _SIZES[:8])
HOP_BATCH = _histogram("hop_batch_s", "Seconds of a batch of hops", (*_MILLISECONDS[4:], *_WAIT_S[:9]))
HOPS = _counter("hops_total", "Hops computed", hop=("first", "later"))
HOPS_LATE = _counter("hops_late_total", "Later hops whose audio came after its listener had run out of audio")
HOP_DECISIONS = _counter(
    "hop_step_decisions_total",
    "What batches of hops that may give way did after a solver step: suspend, wait for the language model (lets_pass), or go on",
    decision=("nobody_waits", "urgent", "nearly_done", "often_enough", "no_slack", "lets_pass", "suspend"),
)
HOP_QUEUE = _gauge("hop_queue_depth", "Hops and offline jobs that wait for a batch")
CAPACITY = _gauge("capacity_audio_s_per_s", "Audio seconds per second with full batches, estimated; 0 before it is known")
FLOW_PAGES = _gauge(
    "flow_pages",
    "Pages of flow state: held by sessions and voices, reserved for sessions, or free",
    state=("used", "reserved", "free"),
)
VOCODER_SLOTS = _gauge("vocoder_slots", "Slots of vocoder state (tier graphs)", state=("used", "free"))

# Every model
THREADS = _gauge("threads", "Python threads of a model's processes", model=())
PROCESS_CPU = _counter("process_cpu_seconds_total", "CPU seconds of a model's processes", model=())
PROCESS_MEMORY = _gauge("process_resident_memory_bytes", "Resident memory of a model's processes", model=())

# The keeper
SERVER_READY = _gauge("server_ready", "1 while new sessions are accepted")
SERVER_RESTARTS = _counter("server_restarts_total", "Restarts of the server after a failure")
METRICS_AGE = _gauge("metrics_age_s", "Seconds since a model's processes last wrote their metrics, the oldest one", model=())

# Models with networks
TIER = _gauge("tier", "1 for the tier of code that computes a network", stage=(), tier=())

ALL: tuple[MetricFamily, ...] = tuple(value for value in list(globals().values()) if isinstance(value, MetricFamily))
BY_NAME: Mapping[str, MetricFamily] = {family.name: family for family in ALL}
