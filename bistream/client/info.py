"""``bistream info``: a server's version, the family that it speaks with, and the tensors of its models."""

from __future__ import annotations

import argparse
from typing import Any

from bistream.client.exit_codes import EXIT_OK
from bistream.client.inquiry import MODELS, Inquiry, ask, show


def main(arguments: list[str] | None = None) -> int:
    return ask("What a server is, and what its models take and give.", arguments, _answer)


def _answer(server: Inquiry, options: argparse.Namespace) -> int:
    names = [name for name in MODELS if server.is_ready(name)]
    found: dict[str, Any] = {
        "server": server.metadata(),
        "model_family": _family(server, names),
        "models": {name: server.metadata(name) for name in names},
    }
    if options.json:
        show(found)
        return EXIT_OK
    about = found["server"]
    print(f"{about.get('name')} {about.get('version')}")
    if found["model_family"] is not None:
        print(f"model family: {found['model_family']}")
    for name, model in found["models"].items():
        print(f"\n{name}")
        for kind in ("inputs", "outputs"):
            for tensor in model.get(kind, []):
                print(f"  {kind[:-1]:6} {_tensor(tensor)}")
    return EXIT_OK


def _family(server: Inquiry, names: list[str]) -> str | None:
    """None where no model is ready, and from a server that does not say it."""
    found = [server.config(name).get("parameters", {}).get("model_family", {}).get("string_value") for name in names[:1]]
    return found[0] if found else None


def _tensor(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']:22} {tensor['datatype']:6} [{', '.join(str(size) for size in tensor['shape'])}]"
