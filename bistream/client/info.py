"""``bistream info``: a server's version, and the tensors of its models."""

from __future__ import annotations

import argparse
from typing import Any

from bistream.client.exit_codes import EXIT_OK
from bistream.client.inquiry import MODELS, Inquiry, ask, show


def main(arguments: list[str] | None = None) -> int:
    return ask("What a server is, and what its models take and give.", arguments, _answer)


def _answer(server: Inquiry, options: argparse.Namespace) -> int:
    found = {"server": server.metadata(), "models": {name: server.metadata(name) for name in MODELS if server.is_ready(name)}}
    if options.json:
        show(found)
        return EXIT_OK
    about = found["server"]
    print(f"{about.get('name')} {about.get('version')}")
    for name, model in found["models"].items():
        print(f"\n{name}")
        for kind in ("inputs", "outputs"):
            for tensor in model.get(kind, []):
                print(f"  {kind[:-1]:6} {_tensor(tensor)}")
    return EXIT_OK


def _tensor(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']:22} {tensor['datatype']:6} [{', '.join(str(size) for size in tensor['shape'])}]"
