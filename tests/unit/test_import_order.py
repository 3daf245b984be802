"""One import direction: a part may import only parts that precede it in ``ORDER``. Function-local imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

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
    text token2mel mel2wav
    bicodec
    voice
    text2token token2wav
    sessions
    transport
    local triton keeper conversion
    evaluation
    commands
    __main__
    """.strip().splitlines()
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
# Modules inside a package, in the same form.
ORDER_INSIDE: dict[str, tuple[frozenset[str], ...]] = {
    "text": tuple(
        frozenset(line.split())
        for line in """
        certain_tokens units effort scripts characters
        special_tokens front_end
        tokenizer speakable prompt_form span_words number_words tags blanks capitals markdown
        reading_context reading
        spans written_forms
        english_times chinese_amounts
        english_amounts chinese_readers
        english_readers
        normalization
        preparation
        text_in
        """.strip().splitlines()
    ),
    "token2wav": tuple(
        map(
            frozenset,
            (
                ("renderer", "capacity", "load_report", "fidelity"),
                ("hop_jobs", "vocoder_ahead"),
                ("speech_stages", "codec_renderer"),
                ("background", "factory", "hop_metrics"),
                ("computing",),
                ("schedule",),
                ("service",),
            ),
        )
    ),
    "gpu": (
        frozenset({"device", "steps"}),
        frozenset({"fidelity", "kept_tensors", "precision", "recording", "claims", "side_stream", "tier"}),  # of every tier
        frozenset({"arithmetic", "barriers", "dependent_launch", "tensor_tiles", "compile_worker"}),  # of kernels: these import triton
        frozenset({"compile_ahead"}),
    ),
    "contract": (
        frozenset({"audio", "checks", "field", "refusals", "voices"}),
        frozenset({"ended_sessions", "fields"}),
        frozenset({"codec"}),
    ),
    "hops": (frozenset({"policy", "queue", "text_pace"}), frozenset({"batch_rules"})),
    "checkpoints": tuple(
        frozenset(names.split())
        for names in ("config files", "model_card sizes", "one_table", "reader", "listing", "download", "released model_dir")
    ),
    "transport": tuple(
        frozenset(names.split())
        for names in (
            "envelope iterator_keeper outbox",
            "call_sockets call_channel sender bls_client",
            "channel_end direct_channel overlap",
            "channel direct_end",
            "sibling_ports",
        )
    ),
    "metrics": tuple(frozenset(names.split()) for names in ("catalogue session_log stage_times", "recorder")),
    "sessions": tuple(
        frozenset(line.split())
        for line in """
        event_loop named_voices playback ports
        request_checks
        load session session_record voices
        language_model_client services
        hop_pacing
        speaking
        watcher
        orchestrator
        """.strip().splitlines()
    ),
}
IMPORT_TRITON = {
    "arithmetic",
    "barriers",
    "dependent_launch",
    "tensor_tiles",
    "compile_ahead",
    "compile_worker",
}  # modules of gpu; beside them only the cuda folders
PACKAGES = ("bistream", "gateway", "interfaces", "scripts")
STAGES = ("text2token", "token2mel", "mel2wav")
CLIENT_MAY_IMPORT = {"audio", "config", "contract", "types", "client", "errors"}
KEEPER_MAY_IMPORT = {"settings", "options"}  # of the gate
GATEWAY_MAY_IMPORT = {"config", "contract", "errors", "processes"}
# Modules of the gate, in the manner of ORDER; a package stands for all of its modules.
GATEWAY_ORDER = tuple(
    frozenset(line.split())
    for line in """
    settings refusals budget grpc_call token_buckets
    requests keys admission metrics options listening
    messages upstream
    session_stream
    session
    session_table
    gate
    conversation
    public http_json http_server
    grpc_questions
    grpc_server http_api
    process
    __main__
    """.strip().splitlines()
)
DOORS = {"grpc_call", "grpc_server", "grpc_questions", "http_api", "http_json", "http_server"}


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Of a file, wherever they stand."""
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_modules(path: Path) -> Iterator[tuple[list[str], int]]:
    """(names below bistream, line) of every import in a file."""
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the direction"
            names = [node.module or ""] if node.module != "bistream" else [f"bistream.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "bistream" and len(parts) > 1:
                yield parts[1:], node.lineno


def imported_parts(path: Path) -> Iterator[tuple[str, int]]:
    """(part of bistream, line) of every import in a file."""
    for names, line in imported_modules(path):
        yield names[0], line


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


@pytest.mark.parametrize("package", sorted(ORDER_INSIDE))
def test_no_module_of_a_package_imports_a_later_one(package: str) -> None:
    rank = {module: number for number, modules in enumerate(ORDER_INSIDE[package]) for module in modules}
    files = {path.stem: path for path in sources(f"bistream/{package}") if path.stem != "__init__"}
    assert set(files) == set(rank), f"give {sorted(set(files) ^ set(rank))} a place in ORDER_INSIDE"
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {names[1]}"
        for module, path in files.items()
        for names, line in imported_modules(path)
        if names[0] == package and len(names) > 1 and rank[names[1]] >= rank[module]
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
        is_kernel_code = "cuda" in place or (place[0] == "gpu" and path.stem in IMPORT_TRITON)
        kernel_parts = {f"gpu.{name}" for name in IMPORT_TRITON}
        if not is_kernel_code:
            assert not any(".".join(names[:2]) in kernel_parts for names, _ in imported_modules(path)), path
            assert "triton" not in top_level_packages(path), path


def top_level_packages(path: Path) -> set[str]:
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def gateway_imports(path: Path) -> set[str]:
    """Modules of the gate that a file imports when it runs (not those for types alone)."""
    text = path.read_text(encoding="utf-8")
    if "gateway" not in text:
        return set()
    tree = ast.parse(text)
    for_types = {inner for node in tree.body if isinstance(node, ast.If) for inner in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in for_types and (node.module or "").split(".")[0] == "gateway":
            inside = (node.module or "").split(".")[1:]
            found |= {inside[0]} if inside else {alias.name for alias in node.names}
    return found


def test_the_gate_imports_only_the_contract() -> None:
    imported = {name for path in sources("gateway") for name, _ in imported_parts(path)}
    assert imported <= GATEWAY_MAY_IMPORT


def test_only_the_keeper_knows_the_gate_and_only_its_command_line() -> None:
    allowed = {"gate"}
    for path in sources("bistream"):
        assert gateway_imports(path) <= (KEEPER_MAY_IMPORT if path.parent.name == "keeper" and path.stem in allowed else set()), path


def test_no_module_of_the_gate_imports_a_later_one() -> None:
    rank = {module: number for number, modules in enumerate(GATEWAY_ORDER) for module in modules}
    files = [path for path in sources("gateway") if path.parent.name == "gateway" and path.stem != "__init__"]
    places = {path.stem for path in files}
    assert places == set(rank), f"give {sorted(places ^ set(rank))} a place in GATEWAY_ORDER"
    wrong = [f"{path.stem} imports {name}" for path in files for name in gateway_imports(path) if rank[name] >= rank[path.stem]]
    assert not wrong, wrong


def test_the_core_of_the_gate_knows_no_web_framework() -> None:
    for path in sources("gateway"):
        names = {
            name.split(".")[0]
            for node in import_statements(path)
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        assert path.stem in DOORS or not names & {"starlette", "uvicorn", "fastapi"}, path


def interfaces_imports(path: Path) -> set[str]:
    """Packages of the interfaces, ``gateway`` modules and parts of bistream that a file imports, as ``gateway.keys``."""
    found = set()
    for node in import_statements(path):
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else []
        ):
            found.add(".".join(name.split(".")[:2]))
    return found


def test_the_interfaces_import_only_the_contract_the_client_and_the_gates_tools() -> None:
    allowed = {f"bistream.{name}" for name in ("client", "config", "contract", "errors", "processes")}
    allowed |= {
        "gateway.admission",
        "gateway.keys",
        "gateway.listening",
        "gateway.refusals",
        "gateway.http_server",
        "gateway.token_buckets",
    }
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
            assert not top_level_packages(path) & {"starlette", "uvicorn", "fastapi", "websockets"}, path
    pure = {name for path in sources("interfaces/protocols") for name in top_level_packages(path)}
    assert not pure & {"asyncio", "threading", "socket"}


def test_only_model_code_knows_the_python_backend() -> None:
    for path in sources("bistream"):
        for node in import_statements(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)]
            assert "triton_python_backend_utils" not in names, path


def test_importing_loads_no_heavy_library() -> None:
    """One process imports all of it; what a module loads is in the line of that module."""
    light = (
        *("bistream", "bistream.contract.fields", "bistream.sessions.ports", "bistream.sessions.orchestrator", "bistream.triton.model"),
        *("bistream.transport.sibling_ports", "bistream.keeper.server_process", "bistream.keeper.gpu_sharing"),
        *("gateway.options", "interfaces.options"),
    )
    heavy: dict[str, tuple[str, ...]] = {name: ("torch", "tritonclient", "onnxruntime", "transformers") for name in light}
    heavy |= dict.fromkeys(("gateway.__main__", "interfaces.__main__"), ("torch", "onnxruntime", "transformers"))
    code = f"import importlib, sys\nfor module, heavy in {heavy}.items():\n    importlib.import_module(module)\n"
    code += "    print(module, *(name for name in heavy if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines() == list(heavy)
