"""``bistream info``: a server's version, what its checkpoint is and speaks, and the tensors of its models."""

from __future__ import annotations

import argparse
from typing import Any

from bistream.client.exit_codes import EXIT_OK
from bistream.client.inquiry import MODELS, Inquiry, ask, parameters_of, show
from bistream.contract.audio import sample_rate_of
from bistream.contract.room import room_of


def main(arguments: list[str] | None = None) -> int:
    return ask("What a server is, and what its models take and give.", arguments, _answer)


def _answer(server: Inquiry, options: argparse.Namespace) -> int:
    names = [name for name in MODELS if server.is_ready(name)]
    found: dict[str, Any] = {
        "server": server.metadata(),
        **_checkpoint(server, names),
        "models": {name: server.metadata(name) for name in names},
    }
    if options.json:
        show(found)
        return EXIT_OK
    about = found["server"]
    print(f"{about.get('name')} {about.get('version')}")
    if found["model_family"] is not None:
        print(f"model family: {found['model_family']}")
    if found["languages"]:
        print(f"languages: {', '.join(found['languages'])}")
    print(f"sample rate: {found['sample_rate']} Hz")
    if found["can_be_instructed"] is not None:
        print(f"takes instructions: {'yes' if found['can_be_instructed'] else 'no'}")
    if found["text_unit"] is not None:
        print(f"speaks text in pieces by the {found['text_unit']}")
    if found["room"] is not None:
        print(found["room"])
    for name, model in found["models"].items():
        print(f"\n{name}")
        for kind in ("inputs", "outputs"):
            for tensor in model.get(kind, []):
                print(f"  {kind[:-1]:6} {_tensor(tensor)}")
    return EXIT_OK


def _checkpoint(server: Inquiry, names: list[str]) -> dict[str, Any]:
    """model_family, can_be_instructed, text_unit, room: None where no model is ready, and from a server that does not say it; languages:
    empty, then and where no restriction is known; sample_rate: upstream's, likewise."""
    told = parameters_of(server.config(names[0])) if names else {}
    return {
        "model_family": told.get("model_family"),
        "languages": [code for code in told.get("languages", "").split(",") if code],
        "can_be_instructed": told["can_be_instructed"] == "true" if "can_be_instructed" in told else None,
        "sample_rate": sample_rate_of(told),
        "text_unit": told.get("text_unit"),
        "room": room_of(told),
    }


def _tensor(tensor: dict[str, Any]) -> str:
    return f"{tensor['name']:22} {tensor['datatype']:6} [{', '.join(str(size) for size in tensor['shape'])}]"
