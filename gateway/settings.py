"""Every setting of the gate, with its default. Built by ``options`` from the command line, by tests directly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bistream.config import SERVER_DRAIN_TIMEOUT_S, RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE, UPSTREAM_SAMPLE_RATE

MIB = 1024 * 1024


@dataclass(frozen=True)
class GateLimits:
    """What one client may take. 0 is no limit, where the comment says so.

    A *holder* is the API key of a request, and its address; both are counted.
    """

    max_text_bytes: int = 4 * RuntimeConfig.max_text_chars  # of one session, all pieces together
    max_recording_s: float = 2 * RuntimeConfig.max_reference_s  # of the tensor, its padding included; the models check the rest
    max_message_bytes: int = 6 * MIB  # of one gRPC message: the longest recording and the longest text
    max_input_bytes: int = 512 * MIB  # of requests on their way, until Triton has them, all clients together; an address may take a quarter
    max_json_bytes: int = 1_000_000  # of the JSON of an HTTP request
    max_json_depth: int = 8
    max_silence_s: float = 60.0  # a session may go without speakable text and without audio; empty pieces renew nothing
    max_unread_audio_s: float = RuntimeConfig.max_unread_audio_s + 30.0  # of one session: the models run that far ahead of the listener
    sample_rate: int = UPSTREAM_SAMPLE_RATE  # of the audio; a keeper reads it from the model repository
    max_output_bytes: int = 1024 * MIB  # of audio kept for clients that do not read, all together; 0: no limit
    max_unanswered: int = 256  # requests of one stream; then the gate reads no more of them
    max_sessions: int = 4096  # of the gate
    sessions_per_key: int = 256  # live ones; 0: no limit
    sessions_per_address: int = 256  # live ones; 0: no limit
    starts_per_second: float = 64.0  # new sessions per holder, steadily; 0: no limit
    start_burst: int = 256  # new sessions per holder at once
    streams_per_address: int = 512  # open calls of an API key, or of an address without one; 0: no limit
    max_streams: int = 8192  # open calls of the gate
    stall_timeout_s: float = 120.0  # a stream whose client takes nothing for so long is ended
    idle_stream_timeout_s: float = 600.0  # a stream without a session is ended after this time

    @property
    def max_recording_samples(self) -> int:
        return int(self.max_recording_s * REFERENCE_SAMPLE_RATE)


@dataclass(frozen=True)
class UpstreamSettings:
    """Triton's gRPC address, and when it counts as hanging. Its readiness is asked every ``poll_interval_s``."""

    address: str = "127.0.0.1:8011"
    poll_interval_s: float = 0.25
    poll_timeout_s: float = 1.0
    hold_file: Path | None = None  # while it exists, Triton does not count as ready: whoever keeps both is still looking at it
    max_silence_s: float = 13.0  # a stop of 12 s is survived; after it, the sessions are told within 15 s


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
