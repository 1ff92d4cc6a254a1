"""Naming the object that can't be pickled, by the way that leads to it."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

_DEEPEST = 12


def blame(roots: Mapping[str, Any], can_be_sent: Callable[[Any], bool], error: Exception) -> str:
    """One line: the way to the innermost object that can't be sent, its type, and why."""
    for name, value in roots.items():
        if not can_be_sent(value):
            way, culprit = _descend(name, value, can_be_sent)
            return f"{way} is {_shown(culprit)} ({_reason(error)})"
    return _reason(error)


def _descend(way: str, value: Any, can_be_sent: Callable[[Any], bool]) -> tuple[str, Any]:
    seen = {id(value)}
    for _ in range(_DEEPEST):
        for step, part in _parts(value):
            if id(part) not in seen and not can_be_sent(part):
                seen.add(id(part))
                way, value = way + step, part
                break
        else:
            break
    return way, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value is made of, and how each part is written after the value's own name."""
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{i}]", item) for i, item in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", item) for name, item in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((f"[{name!r}]", item) for name, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, type):
        yield from ((f".{name}", item) for name, item in vars(value).items() if not name.startswith("__"))
    else:
        yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f": closure variable {name!r}", cell.cell_contents
        except ValueError:
            continue
    for name in _names(function.__code__):
        if name in function.__globals__ and not hasattr(builtins, name):
            item = function.__globals__[name]
            if not isinstance(item, ModuleType):
                yield f": global variable {name!r}", item
    yield from ((f": default {i}", item) for i, item in enumerate(function.__defaults__ or ()))
    yield from ((f": default of {name!r}", item) for name, item in (function.__kwdefaults__ or {}).items())
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield ".__wrapped__", wrapped


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


def _shown(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name}, which can't be pickled"


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
