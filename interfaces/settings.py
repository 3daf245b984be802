"""Settings of the process, as its command line gives them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bistream.client.connection import INSECURE, ClientSecurity
from bistream.config import SERVER_DRAIN_TIMEOUT_S, RuntimeConfig

MARKDOWN = "+markdown"  # texts are prepared as the server does, and read as Markdown, which language models write


@dataclass(frozen=True)
class InterfaceLimits:
    """0 is no limit, where the help says so."""

    max_text_chars: int = 4096  # of one utterance, all pieces together
    max_message_bytes: int = 256 * 1024
    max_body_bytes: int = 1024 * 1024
    max_upload_bytes: int = 10 * 1024 * 1024
    max_recording_s: float = RuntimeConfig.max_reference_s
    min_recording_s: float = RuntimeConfig.min_reference_s
    share: float = 0.25  # of each of the next five, for one API key and for one address
    max_voices: int = 1000
    max_voices_bytes: int = 512 * 1024 * 1024
    max_speeches: int = 1024
    max_sockets: int = 4096
    max_connections: int = 2048
    starts_per_second: float = 64.0  # of one API key and of one address
    contexts_per_socket: int = 16
    idle_socket_s: float = 600.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 20.0


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
