"""Every setting of the gate, with its default. Built by ``options`` from the command line, by tests directly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bistream.config import SERVER_DRAIN_TIMEOUT_S, RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE, UPSTREAM_SAMPLE_RATE
from gateway.limit_options import limit

MIB = 1024 * 1024


@dataclass(frozen=True)
class GateLimits:
    """What clients may take: each is an option of the gate and of the keeper."""

    max_text_bytes: int = limit(4 * RuntimeConfig.max_text_chars, "of one session's text, all pieces together")
    max_recording_s: float = limit(2 * RuntimeConfig.max_reference_s, "of a reference recording, its padding included")
    max_message_bytes: int = limit(6 * MIB, "of one gRPC message, and of one HTTP body with binary tensors")
    max_input_bytes: int = limit(512 * MIB, "of unfinished requests, all clients together; one address may take a quarter; 0: no limit")
    max_json_bytes: int = limit(1_000_000, "of the JSON of one HTTP request")
    max_json_depth: int = limit(8, "of lists and objects within each other in JSON")
    max_silence_s: float = limit(60.0, "a session may go without text that can be spoken and without audio")
    max_unread_audio_s: float = limit(RuntimeConfig.max_unread_audio_s + 30.0, "of one session, kept for a client that does not read")
    sample_rate: int = limit(UPSTREAM_SAMPLE_RATE, "samples per second of the server's audio")
    max_output_bytes: int = limit(1024 * MIB, "of audio that clients have not read, all together; 0: no limit")
    max_unanswered: int = limit(256, "requests of one stream; then no more of them are read")
    max_sessions: int = limit(4096, "live sessions of the gate")
    sessions_per_key: int = limit(256, "live sessions of one API key; 0: no limit")
    sessions_per_address: int = limit(256, "live sessions of one address; 0: no limit")
    starts_per_second: float = limit(64.0, "new sessions of one key or address, steadily; 0: no limit")
    start_burst: int = limit(256, "new sessions of one key or address at once")
    streams_per_address: int = limit(512, "open calls of one API key, or of one address without a key; 0: no limit")
    max_streams: int = limit(8192, "open calls of the gate")
    stall_timeout_s: float = limit(120.0, "a stream whose client takes nothing is ended after it")
    idle_stream_timeout_s: float = limit(600.0, "a stream without a session is ended after it")

    @property
    def max_recording_samples(self) -> int:
        return int(self.max_recording_s * REFERENCE_SAMPLE_RATE)


@dataclass(frozen=True)
class UpstreamSettings:
    """Triton's gRPC address. Its readiness is asked every ``poll_interval_s``; a server that hangs is replaced by the keeper."""

    address: str = "127.0.0.1:8011"
    poll_interval_s: float = 0.25
    poll_timeout_s: float = 1.0
    hold_file: Path | None = None  # while it exists, Triton does not count as ready: whoever keeps both is still looking at it


@dataclass(frozen=True)
class Listen:
    """Where a door listens. port 0: a free one is chosen."""

    address: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True)
class TlsSettings:
    """PEM files. client_ca: only clients with a certificate that it signed are let in (mutual TLS)."""

    certificate: Path
    private_key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class GateSettings:
    upstream: UpstreamSettings = UpstreamSettings()
    limits: GateLimits = field(default_factory=GateLimits)
    grpc: Listen = Listen()
    http: Listen | None = None  # None: no HTTP door
    tls: TlsSettings | None = None
    keys_file: Path | None = None
    drain_timeout_s: float = SERVER_DRAIN_TIMEOUT_S
    ready_file: Path | None = None
    behind_proxy: bool = False  # callers have the address that the proxy tells in x-client-address
