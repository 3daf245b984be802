"""One import direction: a part may import only parts that precede it in ``ORDER``. Function-local imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Parts (modules or sub-packages of bistream) on one line do not import each other.
ORDER: tuple[frozenset[str], ...] = tuple(
    frozenset(line.split())
    for line in """
    types errors families
    processes contract
    audio config metrics store
    checkpoints
    client gpu hops
    text token2mel mel2wav watermark
    bicodec
    voice
    text2token token2wav
    sizing
    sessions
    transport
    local triton keeper conversion
    evaluation
    commands
    __main__
    """.strip().splitlines()
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
# Modules of gpu; beside them only the cuda folders.
IMPORT_TRITON = {"arithmetic", "dependent_launch", "compile_ahead", "compile_worker"}
PACKAGES = ("bistream", "gateway", "interfaces", "scripts")
STAGES = ("text2token", "token2mel", "mel2wav")
CLIENT_MAY_IMPORT = {"audio", "config", "contract", "types", "client", "errors"}
KEEPER_MAY_IMPORT = {"gateway.settings", "gateway.options"}
GATEWAY_MAY_IMPORT = {"config", "contract", "errors", "processes"}
DOORS = {"grpc_call", "grpc_server", "grpc_questions", "http_api", "http_json", "http_server"}


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Of a file, wherever they stand."""
    return [node for node in statements(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Import | ast.ImportFrom)]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those inside, to any depth; expressions, which hold most of a syntax tree, are not looked at."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def imported_names(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of every import in a file; of ``from bistream import x`` it is ``bistream.x``."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the direction"
            module = node.module or ""
            names = [module] if "." in module or module not in PACKAGES else [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            yield name, node.lineno


def imported_parts(path: Path) -> Iterator[tuple[str, int]]:
    """(part of bistream, line) of every import in a file."""
    for name, line in imported_names(path):
        if name.startswith("bistream."):
            yield name.split(".")[1], line


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "bistream").parts[0].removesuffix(".py")


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"{folder} holds no Python"
    return found


def test_no_import_circle() -> None:
    """Those for types alone included."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for top in PACKAGES for path in sources(top)}
    imports: dict[str, set[str]] = {}
    for module, path in files.items():
        found: set[str] = set()
        for node in import_statements(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            else:
                found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
        imports[module] = found & set(files)
    while leaves := [module for module, found in imports.items() if not found & set(imports)]:
        for module in leaves:
            del imports[module]
    assert not imports, f"in or behind a circle: {sorted(imports)}"


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in sources("bistream")} - {"__init__"}
    assert parts <= set(RANK), f"give {sorted(parts - set(RANK))} a place in ORDER"


def test_no_part_imports_a_later_one() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in sources("bistream")
        if (part := part_of(path)) != "__init__"
        for imported, line in imported_parts(path)
        if imported != part and RANK.get(imported, 0) >= RANK[part]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_stages_do_not_import_each_other() -> None:
    for stage in STAGES:
        imported = {name for path in sources(f"bistream/{stage}") for name, _ in imported_parts(path)}
        assert not imported & (set(STAGES) - {stage}), stage


def test_the_token2wav_service_knows_no_network() -> None:
    """Another flow or vocoder would be a separate renderer; the factory imports the present one where it chooses it."""
    for module in ("service", "hop_jobs", "renderer", "factory"):
        imported = {name for name, _ in imported_parts(ROOT / f"bistream/token2wav/{module}.py")}
        assert not imported & {"token2mel", "mel2wav"}, module


def test_clients_import_only_the_contract() -> None:
    imported = {name for path in sources("bistream/client") for name, _ in imported_parts(path)}
    assert imported <= CLIENT_MAY_IMPORT


def test_only_kernel_code_imports_triton() -> None:
    """The choice of a tier, and the tiers without our own kernels, work without Triton."""
    for path in sources("bistream"):
        place = path.relative_to(ROOT / "bistream").parts
        if "cuda" not in place and not (place[0] == "gpu" and path.stem in IMPORT_TRITON):
            assert not {name for name, _ in imported_names(path)} & {f"bistream.gpu.{name}" for name in IMPORT_TRITON}, path
            assert "triton" not in top_level_packages(path), path


def top_level_packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name, _ in imported_names(path)}


def test_the_gate_imports_only_the_contract() -> None:
    imported = {name for path in sources("gateway") for name, _ in imported_parts(path)}
    assert imported <= GATEWAY_MAY_IMPORT


def test_only_the_keeper_knows_the_gate_and_only_its_command_line() -> None:
    for path in sources("bistream"):
        allowed = KEEPER_MAY_IMPORT if path.parent.name == "keeper" else set()
        assert {name for name, _ in imported_names(path) if name.startswith("gateway")} <= allowed, path


def test_the_core_of_the_gate_knows_no_web_framework() -> None:
    for path in sources("gateway"):
        assert path.stem in DOORS or not top_level_packages(path) & {"starlette", "uvicorn"}, path


def interfaces_imports(path: Path) -> set[str]:
    """Packages of the interfaces, ``gateway`` modules and parts of bistream that a file imports, as ``gateway.keys``."""
    return {".".join(name.split(".")[:2]) for name, _ in imported_names(path)}


def test_the_interfaces_import_only_the_contract_the_client_and_the_gates_tools() -> None:
    allowed = {f"bistream.{name}" for name in ("client", "config", "contract", "errors", "processes", "text")}
    allowed |= {
        "gateway.admission", "gateway.keys", "gateway.listening", "gateway.refusals", "gateway.http_server", "gateway.limit_options",
        "gateway.token_buckets",
    }  # fmt: skip
    imported = {name for path in sources("interfaces") for name in interfaces_imports(path)}
    assert {name for name in imported if name.split(".")[0] in ("bistream", "gateway")} <= allowed


def test_no_package_of_the_interfaces_imports_a_later_one() -> None:
    rank = {"settings": 0, "core": 1, "audio": 1, "protocols": 2, "web": 3, "options": 3, "__main__": 4}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources("interfaces")
        for name in interfaces_imports(path)
        if name.startswith("interfaces.")
        and (own := path.relative_to(ROOT / "interfaces").parts[0].removesuffix(".py")) != name.split(".")[1]
        and rank[name.split(".")[1]] >= rank[own]
    ]
    assert not wrong, wrong


def test_core_audio_and_protocols_know_no_web_framework() -> None:
    for folder in ("core", "audio", "protocols"):
        for path in sources(f"interfaces/{folder}"):
            assert not top_level_packages(path) & {"starlette", "uvicorn", "websockets"}, path
    pure = {name for path in sources("interfaces/protocols") for name in top_level_packages(path)}
    assert not pure & {"asyncio", "threading", "socket"}


def test_only_model_code_knows_the_python_backend() -> None:
    for path in sources("bistream"):
        assert "triton_python_backend_utils" not in top_level_packages(path), path


def test_importing_loads_no_heavy_library() -> None:
    """One process imports all of it; what a module loads is in the line of that module."""
    light = (
        *("bistream", "bistream.contract.codec", "bistream.config", "bistream.checkpoints.reader", "bistream.sessions.ports"),
        *("bistream.sessions.orchestrator", "bistream.triton.model", "bistream.transport.sibling_ports"),
        *("bistream.keeper.server_process", "bistream.keeper.gpu_sharing", "gateway.options", "interfaces.options"),
    )
    heavy: dict[str, tuple[str, ...]] = {name: ("torch", "tritonclient", "onnxruntime", "transformers") for name in light}
    heavy |= dict.fromkeys(("gateway.__main__", "interfaces.__main__"), ("torch", "onnxruntime", "transformers"))
    code = f"import importlib, sys\nfor module, heavy in {heavy}.items():\n    importlib.import_module(module)\n"
    code += "    print(module, *(name for name in heavy if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines() == list(heavy)
