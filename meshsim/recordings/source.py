"""Naming a scenario so that another process finds it, and telling whether its source is still the same."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import io
import os
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import meshsim

_OWN_SCENARIOS = Path(meshsim.__file__).parent / "scenarios"
_NOT_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING})


def target_of(scenario: Callable[..., Any]) -> str | None:
    """``module:name`` or ``path.py::name`` of a function; None for one that has no such name."""
    name = getattr(scenario, "__qualname__", "")
    module = sys.modules.get(getattr(scenario, "__module__", None) or "")
    if module is None or _found_in(module, name) is not scenario:
        return None
    file = getattr(module, "__file__", None)
    spec = None if module.__name__ == "__main__" else _spec_of(module.__name__)
    if spec is not None and spec.origin == file:
        return f"{module.__name__}:{name}"
    return f"{file}::{name}" if file else None


def _spec_of(name: str) -> Any:
    """Where Python would import a module from, whatever is loaded under its name now."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _found_in(module: Any, name: str) -> Any:
    found = module
    for part in name.split(".") if name else ():
        found = getattr(found, part, None)
    return found


def source_digest(scenario: Callable[..., Any]) -> str | None:
    """A digest of the scenario's source without comments and blank lines; None where there is no source.

    It covers the function's file; of a built-in scenario that is a package, the package's files. Other
    modules that it imports are not covered.
    """
    file = _file_of(scenario)
    if file is None:
        return None
    digest = hashlib.sha256()
    for path in _files_around(file):
        digest.update(path.name.encode() + b"\0")
        for token in _code(path):
            digest.update(token.encode() + b"\0")
    return f"sha256:{digest.hexdigest()}"


def _file_of(scenario: Callable[..., Any]) -> Path | None:
    function = inspect.unwrap(scenario)
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return None
    return Path(file) if file is not None and os.path.isfile(file) else None


def _files_around(file: Path) -> list[Path]:
    if _OWN_SCENARIOS in file.parents and file.parent != _OWN_SCENARIOS:
        return sorted(file.parent.glob("*.py"))
    return [file]


def _code(path: Path) -> Iterator[str]:
    """The tokens that mean something; all of the text where it isn't Python."""
    data = path.read_bytes()
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(data).readline))
    except (SyntaxError, tokenize.TokenError, UnicodeDecodeError):
        yield data.decode("utf-8", "backslashreplace")
        return
    for token in tokens:
        if token.type not in _NOT_CODE:
            yield token.string if token.type != tokenize.INDENT else "\t"
