"""Reads what a class or function of TensorRT-LLM takes from its source text, without importing it (it needs a GPU's libraries).

Bases are followed within one file. C++ bindings are read by the names of their arguments alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from bistream.text2token.tensorrt_llm.contract import Row
from bistream.text2token.tensorrt_llm.signatures import REQUIRED, UNREADABLE, Found


def found_in(tree: Path, row: Row) -> Found | None:
    """What ``row`` names in a source tree; None where the file or the definition is missing."""
    path = tree / row.file
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    if row.is_binding:
        names = re.findall(r'nb::arg\("(\w+)"\)', text)
        return Found(dict.fromkeys(names, UNREADABLE), attributes=re.findall(r"\b[A-Z]\w+\b", text)) if row.definition in text else None
    return _read(ast.parse(text), row.definition)


def _read(module: ast.Module, definition: str) -> Found | None:
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    name, _, method = definition.partition(".")
    if method:
        function = _method(classes, name, method)
        return None if function is None else _of_function(function)
    if name in classes:
        return _of_class(classes, classes[name])
    return next((_of_function(node) for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _bases(classes: dict[str, ast.ClassDef], node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The class and its bases in this file, in the order in which Python looks (single inheritance, or left to right)."""
    yield node
    for base in node.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(expression, ast.Name) and expression.id in classes:
            yield from _bases(classes, classes[expression.id])


def _method(classes: dict[str, ast.ClassDef], name: str, method: str) -> ast.FunctionDef | None:
    for node in _bases(classes, classes[name]) if name in classes else ():
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == method:
                return item
    return None


def _of_function(function: ast.FunctionDef) -> Found:
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(spec.defaults)), *spec.defaults]
    arguments = {argument.arg: _value(default) for argument, default in zip(positional, defaults, strict=True)}
    arguments |= {argument.arg: _value(default) for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)}
    return Found(arguments, takes_any=spec.kwarg is not None)


def _of_class(classes: dict[str, ast.ClassDef], node: ast.ClassDef) -> Found:
    bases = list(_bases(classes, node))
    constructor = _method(classes, node.name, "__init__")
    called = Found({}) if constructor is None else _of_function(constructor)
    arguments = dict(called.arguments)
    if constructor is None or {"kwargs", "data"} & {argument.arg for argument in (constructor.args.kwarg,) if argument}:
        arguments = _fields(bases)
    return Found(arguments, called.takes_any and not arguments, attributes=set(_attributes(bases)))


def _fields(bases: list[ast.ClassDef]) -> dict[str, object]:
    """Fields of a dataclass or pydantic model, those of a subclass first."""
    fields: dict[str, object] = {}
    for node in bases:
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and "ClassVar" not in ast.unparse(item.annotation):
                name = item.target.id
                if not name.startswith("_"):
                    fields.setdefault(name, _value(item.value))
    return fields


def _attributes(bases: list[ast.ClassDef]) -> Iterator[str]:
    for node in bases:
        for item in ast.walk(node):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield item.name
            elif isinstance(item, ast.AnnAssign | ast.Assign):
                targets = item.targets if isinstance(item, ast.Assign) else [item.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))
                yield from (target.attr for target in targets if isinstance(target, ast.Attribute))


def _value(node: ast.expr | None) -> object:
    """The default that an expression stands for, also inside ``Field(default=...)`` or ``field(default=...)``."""
    if node is None:
        return REQUIRED
    if isinstance(node, ast.Call) and ast.unparse(node.func).lower().endswith("field"):
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if "default_factory" in named:
            return UNREADABLE
        inner = named.get("default", node.args[0] if node.args else None)
        return REQUIRED if inner is None or ast.unparse(inner) == "..." else _value(inner)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNREADABLE
