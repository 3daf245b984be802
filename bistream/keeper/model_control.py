"""Requests of the keeper to the server over HTTP: is it ready, load a model anew.

Loading and unloading need the server's explicit model-control mode, in which whoever knows the admin key can replace models and
thereby run code. The key is random, new with every start, and hidden from the server's command line (``hidden_argument``).
"""

from __future__ import annotations

import urllib.error
import urllib.request

from bistream.keeper.host import ServerError

ADMIN_KEY = "admin-key"  # name of the header
CONTROL_ARGUMENTS = ("--model-control-mode=explicit", "--load-model=*")
READY_TIMEOUT_S = 2.0
UNLOAD_TIMEOUT_S = 10.0  # answered at once, whatever the model still does


def is_ready(http_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http_url}/v2/health/ready", timeout=READY_TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


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
