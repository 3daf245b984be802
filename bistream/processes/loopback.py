"""Requests to this host do not leave it, whatever proxy the environment names."""

from __future__ import annotations

import os

NAMES = "localhost,127.0.0.1,::1,[::1]"  # the last one for Python, which does not take off the brackets


def reach_this_host_directly() -> None:
    """For this process and those that it starts; gRPC and Python's HTTP read ``no_proxy`` at each connection.

    Where packages come through a proxy, ``http_proxy`` is set for every program, and the proxy would look for our servers on its own host.
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if given == "*":  # means every host to Python, where nothing stands beside it, and none to gRPC
        os.environ["no_grpc_proxy"] = NAMES
    elif not given.endswith(NAMES):
        os.environ["no_proxy"] = ",".join(filter(None, (given, NAMES)))
