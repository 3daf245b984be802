"""What this process counts, in Prometheus' text form: ``/metrics``. Servers are labelled by their place on the command line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from interfaces.core.record import Ending
from interfaces.core.service import FIRST_AUDIO_BUCKETS_S, Counts, SpeechService

PREFIX = "bistream_interfaces"


def exposition(service: SpeechService, open_sockets: int) -> str:
    counts, servers = service.counts, service.servers.all
    rows: tuple[tuple[str, str, str, float], ...] = (
        ("utterances", "gauge", "Utterances that are under way.", service.open_speeches),
        ("sockets", "gauge", "Open WebSockets.", open_sockets),
        ("servers_ready", "gauge", "Servers that take sessions.", sum(server.is_ready is True for server in servers)),
        ("draining", "gauge", "1 once the process takes no new requests.", service.drains.is_set()),
        ("utterances_total", "counter", "Utterances that were begun.", counts.speeches),
        ("refused_total", "counter", "Utterances that were refused.", counts.refused),
        ("failed_total", "counter", "Utterances that failed after they had begun.", counts.failed),
        ("cancelled_total", "counter", "Utterances that clients cancelled or left.", counts.cancelled),
        ("characters_total", "counter", "Characters of the texts.", counts.characters),
        ("audio_seconds_total", "counter", "Audio that was made.", counts.audio_s),
    )
    lines = [_family(name, kind, text, [("", value)]) for name, kind, text, value in rows]
    endings = [(f'{{ending="{ending}"}}', float(counts.endings[ending])) for ending in Ending]
    lines.append(_family("endings_total", "counter", "Utterances that are over, by how they ended.", endings))
    lines.append(
        _family("server_ready", "gauge", "1 while the server takes sessions.", _by_server(one.is_ready is True for one in servers))
    )
    lines.append(
        _family("server_sessions", "gauge", "Sessions of this process on the server.", _by_server(one.open_sessions for one in servers))
    )
    lines.append(
        _family("server_load", "gauge", "Load of the server by which it is chosen.", _by_server(one.expected_load for one in servers))
    )
    lines.append(_first_audio(counts))
    return "".join(lines)


def _by_server(values: Iterable[float]) -> Iterator[tuple[str, float]]:
    return ((f'{{server="{number}"}}', value) for number, value in enumerate(values))


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> str:
    head = f"# HELP {PREFIX}_{name} {text}\n# TYPE {PREFIX}_{name} {kind}\n"
    return head + "".join(f"{PREFIX}_{name}{labels} {value:.10g}\n" for labels, value in samples)


def _first_audio(counts: Counts) -> str:
    name, total = "first_audio_s", sum(counts.first_audio)
    bounds = [*(f"{bound:g}" for bound in FIRST_AUDIO_BUCKETS_S), "+Inf"]
    samples = [
        (f'_bucket{{le="{bound}"}}', float(count)) for bound, count in zip(bounds, itertools.accumulate(counts.first_audio), strict=True)
    ]
    return _family(name, "histogram", "Seconds from the first text of an utterance to its first audio.", [
        *samples, ("_sum", counts.first_audio_s), ("_count", total)])  # fmt: skip
