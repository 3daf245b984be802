#!/usr/bin/env python3
"""Writes the table of fields (``bistream/contract/fields.py``) into the templates' inputs and outputs and into docs/wire_protocol.md.

Run it after a change of the table; a test holds the files to it. The rest of each file stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bistream.contract.field import Field  # noqa: E402
from bistream.contract.fields import CONTRACTS, COSYVOICE2_BISTREAM, ModelContract  # noqa: E402

DOCUMENT = ROOT / "docs/wire_protocol.md"


def template_of(contract: ModelContract) -> Path:
    return ROOT / "templates" / contract.name / "config.pbtxt"


def filled_template(text: str, contract: ModelContract) -> str:
    for kind, fields in (("input", contract.inputs), ("output", contract.outputs)):
        rows = ",\n".join(f"  {{ {_tensor(field, contract.is_batched and kind == 'input', kind)} }}" for field in fields)
        text, found = re.subn(rf"^{kind} \[\n.*?^\]$", lambda _: f"{kind} [\n{rows}\n]", text, flags=re.MULTILINE | re.DOTALL)  # noqa: B023
        assert found == 1, f"{contract.name}: one section {kind} [ ... ]"
    return text


def _tensor(field: Field, is_batched: bool, kind: str) -> str:
    dims = field.dims[1:] if is_batched else field.dims
    datatype = "STRING" if field.datatype == "BYTES" else field.datatype
    ragged = " allow_ragged_batch: true" if is_batched else ""
    optional = " optional: true" if field.optional and kind == "input" else ""
    return f'name: "{field.name}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ]{ragged}{optional}'


def filled_document(text: str) -> str:
    """The tables with the heads ``| input | type, shape | meaning |`` and ``| output | ...``."""
    for kind, fields in (("input", COSYVOICE2_BISTREAM.inputs), ("output", COSYVOICE2_BISTREAM.outputs)):
        head = f"| {kind} | type, shape | meaning |\n|---|---|---|\n"
        before, _, after = text.partition(head)
        rest = after[after.index("\n\n") + 1 :]
        text = f"{before}{head}{''.join(_rows(fields))}{rest}"
    return text


def _rows(fields: Iterable[Field]) -> Iterator[str]:
    for field in fields:
        yield f"| `{field.name}` | {field.form} | {field.doc} |\n"


def main() -> None:
    for contract in CONTRACTS:
        path = template_of(contract)
        path.write_text(filled_template(path.read_text(encoding="utf-8"), contract), encoding="utf-8")
    DOCUMENT.write_text(filled_document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
