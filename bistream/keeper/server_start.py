"""Starts one Triton server, asks each of its models for an answer, and verifies what they say. Used by ``supervisor`` and by tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bistream.keeper.host import ServerError
from bistream.keeper.model_requests import RequestError
from bistream.keeper.probe import probe
from bistream.keeper.repository import model_names
from bistream.keeper.server_process import ServerSettings, TritonServer, never
from bistream.processes.start_phases import phase

Verify = Callable[[TritonServer, Callable[[], bool]], None]  # what a server must pass before it is ready, once its models have answered


def verify_nothing(server: TritonServer, should_stop: Callable[[], bool]) -> None:
    """should_stop: when to raise ``Interrupted``. Others raise ``ServerError``."""


def start_server(
    settings: ServerSettings, probe_timeout_s: float, should_stop: Callable[[], bool] = never, verify: Verify = verify_nothing
) -> TritonServer:
    """A server whose models have all answered. Raises ``ServerError`` or ``Interrupted``; nothing is left running then."""
    server = TritonServer(settings)
    with phase("Triton and its models"):
        server.start(should_stop)
    try:
        with phase("probes"):
            probe_all(server.grpc_url, model_names(settings.model_repository), probe_timeout_s, should_stop)
        with phase("verification"):
            verify(server, should_stop)
    except BaseException as error:
        server.stop(exit_timeout_s=0.0)
        if isinstance(error, RequestError):
            raise ServerError(f"The server started, but {error}.") from None
        raise
    return server


def probe_all(grpc_url: str, models: list[str], timeout_s: float, should_stop: Callable[[], bool]) -> None:
    """All models at the same time: a first request of each takes longest. Raises as ``probe``, for the first one in order."""
    if not models:
        return
    with ThreadPoolExecutor(len(models), thread_name_prefix="first-probe") as pool:
        for done in [pool.submit(probe, grpc_url, [model], timeout_s, should_stop) for model in models]:
            done.result()
