"""Why a server did not start, read from its log."""

from __future__ import annotations

import re

from bistream.keeper.host import ServerError

# The reason ends before the stack, whose line breaks the log writes as \n.
_LOAD_FAILURE = re.compile(
    r"failed to load '(?P<model>[^']+)' version \d+: [\w ]+: (?:TritonModelException: )?(?P<reason>.*?)(?:\\n|\"?$)", re.MULTILINE
)


class PortInUseError(ServerError):
    """A port was taken between choosing and using it, or belongs to another server."""


def start_failure(log: str, exit_code: int | None) -> ServerError:
    """The reason why a server ended while starting, from its log: one sentence for each model that refused to load."""
    if "already in use" in log:
        return PortInUseError("A port of the server is in use; stop the other server or choose other ports.")
    reasons = {match["model"]: match["reason"] for match in _LOAD_FAILURE.finditer(log)}
    if reasons:
        return ServerError("\n".join(f"Model {model} refused to load: {reason}" for model, reason in reasons.items()))
    return ServerError(f"The server ended with exit code {exit_code} while starting; its log ends with:\n{log[-2000:]}")
