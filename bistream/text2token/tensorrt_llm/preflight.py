"""Whether the installed TensorRT-LLM is one that the engine can use; if not, one sentence says why not.

``check_installed`` only looks for the package, in milliseconds (stage 2 of ``run.sh``). ``check_signatures`` imports it and compares it
with the contract, before a network is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import sys

from bistream.errors import ConfigError
from bistream.text2token.tensorrt_llm.contract import CONTRACT, PACKAGE, VERSION, Row
from bistream.text2token.tensorrt_llm.signatures import differences, inspected

logger = logging.getLogger(__name__)
MOST_CLAUSES = 3  # of what does not fit; the rest is counted


def check_installed() -> str:
    """The version of the installed package. Raises ``ConfigError`` where there is none."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"Engine tensorrt_llm needs the Python package {PACKAGE} {VERSION}, which {sys.executable} does not have; "
            "use the container of docs/tensorrt_llm.md or set engine (PROFILE) to torch."
        )
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def check_signatures() -> None:
    """Import the package and compare it with the contract. Raises ``ConfigError`` with the first clauses of what does not fit."""
    version = check_installed()
    clauses = [clause for row in CONTRACT for clause in _compare(row)]
    if clauses:
        more = f" and {len(clauses) - MOST_CLAUSES} more" if len(clauses) > MOST_CLAUSES else ""
        raise ConfigError(
            f"TensorRT-LLM {version} does not fit this engine, which was written for {VERSION}: {'; '.join(clauses[:MOST_CLAUSES])}{more}; "
            f"install {VERSION} or set engine to torch."
        )
    if version != VERSION:
        logger.warning("TensorRT-LLM %s is installed; the engine was written for %s, and all that it calls is there", version, VERSION)


def find(row: Row) -> object:
    """The installed object of a row. Raises ``ImportError`` or ``AttributeError``."""
    target: object = importlib.import_module(row.module)
    for name in row.name.split("."):
        target = getattr(target, name)
    return target


def _compare(row: Row) -> list[str]:
    try:
        target = find(row)
    except AttributeError:
        return [f"{row.module} has no {row.name}"]
    except Exception as error:  # importing it can fail in any way: a library that is missing, a driver that is too old
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"The installed TensorRT-LLM cannot be imported ({type(error).__name__}: {reason}); "
            "repair it, or use the container of docs/tensorrt_llm.md."
        ) from error
    return list(differences(row, inspected(target, row)))
