"""Connections before their first byte: how many there may be, also those that never finish their TLS handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway import acceptor as module
from gateway.acceptor import Acceptor
from gateway.admission import host_of
from gateway.listening import listening_socket, server_context
from gateway.settings import Limits, TlsSettings
from tests.unit.gateway.rig import certificate


class Protocol(asyncio.Protocol):
    def __init__(self, peer: str, on_end: Callable[[], None]) -> None:
        self.peer = peer
        self._on_end = on_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    return certificate(tmp_path_factory.mktemp("pem"))


@contextlib.contextmanager
def accepting(limits: Limits, tls: TlsSettings | None = None, address: str = "127.0.0.1") -> Iterator[Acceptor]:
    context = None if tls is None else server_context(tls, ["h2"])
    made = Acceptor(listening_socket(address, 0, "test"), Protocol, context, limits)
    try:
        yield made
    finally:
        made.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.001)


async def greeting(peer: socket.socket) -> bytes:
    peer.setblocking(False)
    try:
        async with asyncio.timeout(240):
            return await asyncio.get_running_loop().sock_recv(peer, 100)
    except ConnectionError:
        return b""


def connected(acceptor: Acceptor, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", acceptor.port), timeout=240, source_address=(source, 0))


@pytest.mark.parametrize("limits", [Limits(max_connections=2), Limits(connections_per_address=2)])
def test_a_connection_over_the_limit_is_closed_and_places_become_free(limits: Limits) -> None:
    async def test() -> None:
        with accepting(limits) as acceptor:
            first, second, third = (connected(acceptor) for _ in range(3))
            assert [await greeting(peer) for peer in (first, second, third)] == [b"hello", b"hello", b""]
            first.close()
            await until(lambda: acceptor.connections == 1)
            again = connected(acceptor)
            assert await greeting(again) == b"hello"
            for peer in (second, third, again):
                peer.close()
            await until(lambda: acceptor.connections == 0)

    asyncio.run(test())


def test_a_handshake_that_is_not_finished_takes_a_place_and_loses_it(tls: TlsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 2.0)  # less than a busy machine takes to count the connections would fail

    async def test() -> None:
        with accepting(Limits(connections_per_address=3), tls) as acceptor:
            silent, half, wrong = (connected(acceptor) for _ in range(3))
            half.sendall(b"\x16\x03\x01\x02\0")
            await until(lambda: acceptor.connections == 3)
            refused = connected(acceptor)
            assert await greeting(refused) == b"" and acceptor.connections <= 3
            wrong.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: acceptor.connections == 0)
            monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 240.0)  # of one that is finished
            context = ssl.create_default_context(cafile=str(tls.certificate))
            reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port, ssl=context)
            assert await reader.read(5) == b"hello"
            writer.close()
            for peer in (silent, half, wrong, refused):
                peer.close()
            await until(lambda: acceptor.connections == 0)

    asyncio.run(test())


def test_new_connections_of_an_address_are_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_PER_SECOND", 0.001)

    async def test() -> None:
        with accepting(Limits(connections_per_address=3)) as acceptor:
            monkeypatch.setattr(module, "CONNECTIONS_PER_SECOND", 0.001)
            greetings = []
            for _ in range(5):
                peer = connected(acceptor)
                greetings.append(await greeting(peer))
                peer.close()
                await until(lambda: acceptor.connections == 0)
            assert greetings == [b"hello"] * 3 + [b""] * 2
            other = connected(acceptor, "127.0.0.2")
            assert await greeting(other) == b"hello"
            other.close()
            await until(lambda: acceptor.connections == 0)

    asyncio.run(test())


def test_addresses_that_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ADDRESSES", 5)

    async def test() -> None:
        with accepting(Limits()) as acceptor:
            for number in range(1, 20):
                peer = connected(acceptor, f"127.0.0.{number}")
                assert await greeting(peer) == b"hello"
                peer.close()
                await until(lambda: acceptor.connections == 0)
            assert len(acceptor._addresses) <= 5

    asyncio.run(test())


def test_an_ipv4_address_on_an_ipv6_socket_is_counted_as_itself() -> None:
    async def test() -> None:
        try:
            listening_socket("::", 0, "test").close()
        except Exception:
            pytest.skip("no IPv6")
        with accepting(Limits(connections_per_address=1), address="::") as acceptor:
            first, second = connected(acceptor), connected(acceptor)
            assert await greeting(first) == b"hello" and await greeting(second) == b""
            assert set(acceptor._addresses) == {"127.0.0.1"}
            first.close()
            second.close()
            await until(lambda: acceptor.connections == 0)

    asyncio.run(test())


def test_want_of_files_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NO_FILES_PAUSE_S", 0.01)

    async def test() -> None:
        with accepting(Limits()) as acceptor:
            listener, failures = acceptor._listener, [OSError(24, "Too many open files")] * 3

            class Failing:
                def __getattr__(self, name: str) -> object:
                    return getattr(listener, name)

                def accept(self) -> object:
                    if failures:
                        raise failures.pop()
                    return listener.accept()

            acceptor._listener = Failing()  # type: ignore[assignment]
            peer = connected(acceptor)
            assert await greeting(peer) == b"hello" and not failures
            peer.close()
            await until(lambda: acceptor.connections == 0)
            acceptor._listener = listener

    asyncio.run(test())


def test_tls_is_of_version_1_2_or_later_with_forward_secrecy(tls: TlsSettings) -> None:
    context = server_context(tls, ["h2"])
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION and context.options & ssl.OP_NO_COMPRESSION
    older = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert older and all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in older)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::FFFF:0102:0304", "1.2.3.4"),
        ("0:0:0:0:0:ffff:1.2.3.4", "1.2.3.4"),
        ("2002:102:304::1", "1.2.3.4"),
        ("2002:102:304:ffff::1", "1.2.3.4"),
        ("2001:db8::1%1", "2001:db8::"),
    ],
)
def test_forms_of_an_address_are_one_address(host: str, counted: str) -> None:
    assert host_of(host) == counted


def test_networks_of_64_bits_are_one_address(tmp_path: Path) -> None:
    assert len({host_of(f"2001:db8:1:2:{number:x}::1") for number in range(1000)}) == 1
