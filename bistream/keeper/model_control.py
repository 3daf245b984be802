"""Requests of the keeper to the server over HTTP: is it ready, load a model anew.

Loading and unloading need the server's explicit model-control mode, in which whoever knows the admin key can replace models and
thereby run code. The key is random and new with every start. Triton takes it from the command line only, where the keeper overwrites it
as soon as the server has read it.
"""

from __future__ import annotations

import http.client
import logging
import urllib.error
import urllib.request
from pathlib import Path

from bistream.keeper.health import READY
from bistream.keeper.host import ServerError, fetch

logger = logging.getLogger(__name__)

ADMIN_KEY = "admin-key"  # name of the header
CONTROL_ARGUMENTS = ("--model-control-mode=explicit", "--load-model=*")
READY_TIMEOUT_S = 2.0
UNLOAD_TIMEOUT_S = 10.0  # answered at once, whatever the model still does
_ARG_START, _ARG_END = 48 - 3, 49 - 3  # fields of /proc/PID/stat after the state, which is the third (proc(5))


def is_ready(http_url: str) -> bool:
    found = fetch(http_url, READY, READY_TIMEOUT_S)
    return found is not None and found[0] == http.client.OK


class ModelControl:
    """http_url: host and port of one server. load_timeout_s: how long a model may take to load."""

    def __init__(self, http_url: str, key: str, load_timeout_s: float) -> None:
        self._url = http_url
        self._key = key
        self._load_timeout_s = load_timeout_s

    def unload(self, model: str) -> None:
        """Take a model out of service. Raises ``ServerError``."""
        self._post(model, "unload", UNLOAD_TIMEOUT_S)

    def load(self, model: str) -> None:
        """Start an unloaded model; returns when it serves. Raises ``ServerError``."""
        self._post(model, "load", self._load_timeout_s)

    def _post(self, model: str, action: str, timeout_s: float) -> None:
        url = f"http://{self._url}/v2/repository/models/{model}/{action}"
        request = urllib.request.Request(url, data=b"{}", headers={ADMIN_KEY: self._key}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s):
                return
        except urllib.error.HTTPError as error:
            reason = error.read().decode("utf-8", errors="replace")
        except OSError as error:
            reason = str(error)
        raise ServerError(f"The server could not {action} model {model}: {reason}")


def hide_argument(pid: int, secret: str) -> bool:
    """Replace every occurrence of ``secret`` in the command line that a running child shows to every user of the machine. Whether it is
    hidden now. A parent may write into its child's memory, unless the host forbids all tracing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            shown = memory.read(end - begin)
            memory.seek(begin)
            memory.write(shown.replace(secret.encode(), b"x" * len(secret)))
        return secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError) as error:
        logger.warning("the key of the restricted requests stays visible on the server's command line (%s)", error)
        return False
