"""Settings of the process, as its command line gives them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bistream.client.connection import INSECURE, ClientSecurity
from bistream.config import SERVER_DRAIN_TIMEOUT_S, RuntimeConfig
from gateway.limit_options import limit

MARKDOWN = "+markdown"  # texts are prepared as the server does, and read as Markdown, which language models write


@dataclass(frozen=True)
class InterfaceLimits:
    """Each is an option."""

    max_text_chars: int = limit(4096, "characters of one utterance")
    max_message_bytes: int = limit(256 * 1024, "of one WebSocket message")
    max_body_bytes: int = limit(1024 * 1024, "of the body of a request")
    max_upload_bytes: int = limit(10 * 1024 * 1024, "of an uploaded recording")
    max_recording_s: float = limit(RuntimeConfig.max_reference_s, "of an uploaded recording")
    min_recording_s: float = limit(RuntimeConfig.min_reference_s, "of an uploaded recording")
    share: float = limit(0.25, "of each of the next five, for one API key and for one address; 1: all")
    max_voices: int = limit(1000, "uploaded voices")
    max_voices_bytes: int = limit(512 * 1024 * 1024, "of their recordings, 64 kB a second")
    max_speeches: int = limit(1024, "utterances under way; 0: no limit")
    max_sockets: int = limit(4096, "open WebSockets; 0: no limit")
    max_connections: int = limit(2048, "open HTTP connections; 0: no limit")
    starts_per_second: float = limit(64.0, "new utterances of one API key and of one address, steadily; 0: no limit")
    contexts_per_socket: int = limit(16, "ElevenLabs or Cartesia contexts beside each other")
    idle_socket_s: float = limit(600.0, "seconds until a WebSocket without utterances and messages is closed; 0: never")
    body_timeout_s: float = limit(60.0, "for the body of a request; 0: no limit")
    send_timeout_s: float = limit(20.0, "seconds until a client that reads nothing is disconnected; 0: never")


@dataclass(frozen=True)
class Recording:
    """A voice that the command line brings: a file that can be decoded, and what is said in it."""

    name: str
    audio: Path
    transcript: str


@dataclass(frozen=True)
class Settings:
    servers: tuple[str, ...] = ("127.0.0.1:8001",)
    address: str = "127.0.0.1"
    port: int = 8080
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    keys_file: Path | None = None
    server_security: ClientSecurity = INSECURE  # API key and TLS towards the servers
    voices_folder: Path | None = None  # None: uploads live as long as the process
    lexicons_folder: Path | None = None  # of pronunciation dictionaries; None: there are none
    recordings: tuple[Recording, ...] = ()
    speakers: tuple[str, ...] = ()  # voices that are registered in the servers
    default_voice: str | None = None  # None: the first one
    aliases: tuple[tuple[str, str], ...] = ()
    accepts_any_voice: bool = False
    speak_after_s: float = 2.0  # 0: never
    text_normalization: str = MARKDOWN  # of ``checks.TEXT_NORMALIZATIONS``, where a request does not say it
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # beside the names of loopback and the address above
    behind_proxy: bool = False  # the header ``x-client-address`` tells who calls
    drain_timeout_s: float = SERVER_DRAIN_TIMEOUT_S
    ready_file: Path | None = None
    limits: InterfaceLimits = InterfaceLimits()
