"""Starts one Triton server, asks each of its models for an answer, and verifies what they say. Used by ``supervisor`` and by tests."""

from __future__ import annotations

from collections.abc import Callable

from bistream.keeper.host import ServerError
from bistream.keeper.probe import ProbeError, probe
from bistream.keeper.server_process import ServerSettings, TritonServer, never
from bistream.keeper.start_failure import PortInUseError

PORT_ATTEMPTS = 3
Verify = Callable[[TritonServer, Callable[[], bool]], None]  # given when to stop; raises ``ServerError``


def verify_nothing(server: TritonServer, should_stop: Callable[[], bool]) -> None:
    pass


def start_server(
    settings: ServerSettings, probe_timeout_s: float, should_stop: Callable[[], bool] = never, verify: Verify = verify_nothing
) -> TritonServer:
    """A server whose models have all answered. Raises ``ServerError`` or ``Interrupted``; nothing is left running then."""
    for attempt in range(PORT_ATTEMPTS):
        server = TritonServer(settings)
        try:
            server.start(should_stop)
        except PortInUseError:
            if settings.ports is not None or attempt + 1 == PORT_ATTEMPTS:
                raise
            continue
        try:
            probe(server.grpc_url, model_names(settings), probe_timeout_s, should_stop)
            verify(server, should_stop)
        except BaseException as error:
            server.stop(exit_timeout_s=0.0)
            if isinstance(error, ProbeError):
                raise ServerError(f"The server started, but {error}.") from None
            raise
        return server
    raise AssertionError("unreachable")


def model_names(settings: ServerSettings) -> list[str]:
    return sorted(path.parent.name for path in settings.model_repository.glob("*/config.pbtxt"))
