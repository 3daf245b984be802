"""``python -m interfaces``: see ``--help`` and docs/interfaces.md."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import sys
from typing import Any

import uvicorn
import uvloop

from bistream.contract.checks import check_speaker_name
from bistream.contract.voices import REGISTERED
from bistream.errors import BistreamError, ConfigError
from bistream.processes.limits import raise_soft_limit
from bistream.processes.loopback import reach_this_host_directly
from bistream.processes.signals import stop_events
from gateway.http_server import EmbeddedServer
from gateway.keys import Keys
from gateway.listening import listening_socket
from interfaces.audio.recordings import decode_recording
from interfaces.core.lexicons import Lexicons
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.voice import Voice
from interfaces.core.voices import VoiceStore
from interfaces.options import parse_arguments
from interfaces.settings import Settings
from interfaces.web.access import Access
from interfaces.web.app import make_app
from interfaces.web.http_protocol import http_protocol
from interfaces.web.socket_protocol import PING_TIMEOUT_S, SocketProtocol

logger = logging.getLogger("interfaces")

EXIT_OK, EXIT_FAILED = 0, 1
EVERYWHERE = ("0.0.0.0", "::")
RESERVED_FILES = 256  # connections to the servers, uploads, libraries
FAREWELL_S = 3  # for sockets and responses, after the last utterance


def make_voices(settings: Settings) -> VoiceStore:
    """Raises ``ConfigError`` for a recording that cannot be used."""
    fixed: list[Voice] = []
    limits = settings.limits
    for recording in settings.recordings:
        try:
            samples = decode_recording(recording.audio.read_bytes(), limits.min_recording_s, limits.max_recording_s)
        except (OSError, BistreamError) as error:
            raise ConfigError(f"The recording {recording.audio} of --recording cannot be used: {error}") from None
        fixed.append(Voice(recording.name, recording.name, samples, recording.transcript))
    for speaker in settings.speakers:
        check_speaker_name(speaker)
        fixed.append(Voice(speaker, speaker, speaker_id=speaker, kind=REGISTERED))
    return VoiceStore(tuple(fixed), settings.voices_folder, settings.default_voice, settings.aliases, settings.accepts_any_voice, limits)


def hosts_of(settings: Settings) -> tuple[str, ...]:
    """By which clients may call it, beside the names of loopback."""
    is_concrete = settings.address not in EVERYWHERE
    own = (f"[{settings.address}]" if ":" in settings.address else settings.address,) if is_concrete else ()
    return (*settings.allowed_hosts, *own)


async def serve(settings: Settings) -> None:
    """Until the process was asked to end and what was being spoken is over. Raises ``ConfigError`` at the start."""
    keys = None if settings.keys_file is None else Keys.read(settings.keys_file)
    limits = settings.limits
    servers = Servers(settings.servers, settings.server_security)
    lexicons = Lexicons.read(settings.lexicons_folder, keys)
    service = SpeechService(servers, make_voices(settings), limits, settings.speak_after_s, settings.text_normalization, lexicons)
    access = Access(keys, limits, settings.allowed_origins, hosts_of(settings), settings.behind_proxy)
    raise_soft_limit(resource.RLIMIT_NOFILE, limits.max_sockets + limits.max_connections + RESERVED_FILES)
    listener = listening_socket(settings.address, settings.port, "HTTP")
    server = EmbeddedServer(_config(settings, make_app(service, access, limits, settings.allowed_origins)))
    first, second = stop_events()
    await servers.check()  # the voices are known before anybody asks
    watching = asyncio.create_task(servers.watch())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        _announce(settings, listener.getsockname()[1])
        asked = asyncio.create_task(first.wait())
        await asyncio.wait([asked, serving], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        await _drain(service, settings.drain_timeout_s, second)
        with contextlib.suppress(TimeoutError):  # each socket is closed with its own goodbye; what is left then, uvicorn closes
            await asyncio.wait_for(access.all_left.wait(), FAREWELL_S)
        server.should_exit = True
        await serving
    finally:
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await servers.close()


async def _drain(service: SpeechService, timeout_s: float, second: asyncio.Event) -> None:
    logger.info("draining: %d utterances are under way", service.open_speeches)
    draining, impatient = asyncio.create_task(service.drain(timeout_s)), asyncio.create_task(second.wait())
    await asyncio.wait([draining, impatient], return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, impatient):
        task.cancel()
    await asyncio.gather(draining, impatient, return_exceptions=True)
    await service.drain(0.0)


def _config(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http_protocol(settings),
        ws=SocketProtocol,
        ws_max_size=settings.limits.max_message_bytes,
        ws_ping_timeout=PING_TIMEOUT_S,
        ws_per_message_deflate=False,  # of audio it makes nothing smaller
        lifespan="off",
        server_header=False,
        access_log=False,
        log_config=None,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=FAREWELL_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


def _announce(settings: Settings, port: int) -> None:
    host = "127.0.0.1" if settings.address in EVERYWHERE else settings.address
    url = f"{'http' if settings.tls_certificate is None else 'https'}://{host}:{port}"
    if settings.address in EVERYWHERE and not settings.allowed_hosts:
        logger.warning("only requests to the names of loopback are answered; name those of this machine with --allowed-hosts")
    logger.info("the page and the interfaces are at %s, for the servers %s", url, ", ".join(settings.servers))
    if settings.ready_file is not None:
        try:
            settings.ready_file.write_text(url, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"The ready file {settings.ready_file} cannot be written ({error.strerror}); choose another one.") from None


def _log_utterances() -> None:
    """Their lines are JSON and nothing else, as the servers' are."""
    logger = logging.getLogger("interfaces.utterances")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.propagate = False


def main(arguments: list[str] | None = None) -> int:
    settings = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s interfaces: %(message)s", stream=sys.stderr)
    for name in ("uvicorn", "python_multipart"):  # they have a line for each request that is none
        logging.getLogger(name).setLevel(logging.ERROR)
    _log_utterances()
    reach_this_host_directly()
    gc.freeze()  # what the imports made is never garbage, and messages come and go without cycles: look for them seldom
    gc.set_threshold(20_000, 20, 50)
    try:
        uvloop.run(serve(settings))
    except BistreamError as error:
        sys.stderr.write(f"interfaces: {error.sentence}\n")
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
