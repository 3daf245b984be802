"""Compares rows of the contract with what a class or function really takes, and says in a clause each what does not fit.

``Found`` is made from an installed object here, and from source text by the tests, so both are compared by the same rules.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bistream.text2token.tensorrt_llm.contract import Row


class _Unreadable:
    """A default that only running code could tell."""

    def __repr__(self) -> str:
        return "a computed value"


UNREADABLE = _Unreadable()
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Found:
    """arguments: with their defaults, ``REQUIRED`` without one, in the order of positions.

    takes_any: it has ``**kwargs``. attributes: None where they cannot be told.
    """

    arguments: Mapping[str, object]
    takes_any: bool = False
    attributes: Collection[str] | None = None


def differences(row: Row, found: Found) -> Iterator[str]:
    """One clause for everything in which ``found`` does not fit ``row``."""
    if row.arguments or not row.attributes:  # else it is only read, never called
        yield from _argument_differences(row, found)
    if found.attributes is not None:
        yield from (f"{row.name} has no {name}" for name in row.attributes if name not in found.attributes)


def _argument_differences(row: Row, found: Found) -> Iterator[str]:
    for name in row.arguments:
        if name not in found.arguments and not found.takes_any:
            yield f"{row.name} takes no argument {name}"
    for name, default in row.defaults.items():
        actual = found.arguments.get(name, default)  # an argument that is gone has no other default
        if actual is UNREADABLE or actual != default:
            yield f"{row.name} has {actual!r} as default of {name} instead of {default!r}"
    passed = {*row.arguments, *row.optional, "self"}
    for name, default in found.arguments.items():
        if default is REQUIRED and name not in passed:
            yield f"{row.name} requires the argument {name}"


def inspected(target: object, row: Row) -> Found:
    """What an installed class or function takes."""
    if row.is_binding:
        return Found(dict.fromkeys(_binding_arguments(target, row), UNREADABLE), attributes=dir(target))
    if isinstance(target, type):
        return Found(*_class_arguments(target), attributes=_attributes(target))
    return Found(*_callable_arguments(target))


def _binding_arguments(target: object, row: Row) -> Collection[str]:
    """Names in the generated documentation of a nanobind constructor; all of the row's where it has none."""
    constructor = getattr(target, "__init__", None)
    text = f"{getattr(constructor, '__nb_signature__', '')} {getattr(constructor, '__doc__', '') or ''}"
    names = set(re.findall(r"(\w+)\s*[:=]", text))
    return names if names & set(row.arguments) else row.arguments


def _class_arguments(target: type) -> tuple[Mapping[str, object], bool]:
    fields = getattr(target, "model_fields", None)
    if isinstance(fields, dict):  # pydantic
        return {name: _model_default(field) for name, field in fields.items()}, False
    if dataclasses.is_dataclass(target):
        return {field.name: _field_default(field) for field in dataclasses.fields(target) if field.init}, False
    return _callable_arguments(target)


def _model_default(field: object) -> object:
    is_required = getattr(field, "is_required", None)
    if callable(is_required) and is_required():
        return REQUIRED
    return UNREADABLE if getattr(field, "default_factory", None) is not None else getattr(field, "default", UNREADABLE)


def _field_default(field: dataclasses.Field[object]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return REQUIRED if field.default_factory is dataclasses.MISSING else UNREADABLE


def _callable_arguments(target: object) -> tuple[Mapping[str, object], bool]:
    if not callable(target):
        return {}, False
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # an enumeration, or code that is not Python
        return {}, True
    by_name = {p.name: p.default for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return by_name, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _attributes(target: type) -> Collection[str]:
    """Class attributes, annotated fields, and what the source of the constructors assigns to ``self``."""
    names = set(dir(target))
    for base in target.__mro__:
        names |= set(getattr(base, "__annotations__", {}))
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            try:
                names |= set(re.findall(r"self\.(\w+)\s*(?::[^=\n]+)?=[^=]", inspect.getsource(constructor)))
            except OSError:
                continue
    return names
