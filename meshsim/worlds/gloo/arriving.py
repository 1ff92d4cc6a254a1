"""Called by name from a packed request, in the worker: each rebuilds one kind of object."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
import weakref
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

_numbers: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


def code_from_file(filename: str, *arguments: Any) -> CodeType:
    """cloudpickle names every file ``<dynamic-code>``; tracebacks and traces need the user's own."""
    return CodeType(*arguments).replace(co_filename=filename)


def finish_class(kind: type, state: tuple[int, Callable[[type, Any], None], Any]) -> None:
    """Fill a class that came by value, and note the number that the parent knows it by."""
    number, set_state, contents = state
    set_state(kind, contents)
    _numbers[kind] = number
    _show_in_module(kind)


def itself(value: Any) -> Any:
    """For what is sent in another's place: a function names it as its ``meshsim_sent_as``."""
    return value


def number_of(kind: type) -> int | None:
    """The number of a class that came from the parent by value."""
    return _numbers.get(kind)


def _show_in_module(kind: type) -> None:
    """Let plain pickle find the class by name, so that ``all_gather_object`` takes its instances."""
    if "." in kind.__qualname__:
        return
    module = sys.modules.get(kind.__module__)
    if module is None:
        module = sys.modules[kind.__module__] = ModuleType(kind.__module__)
    if module.__name__ == "__main__" or not hasattr(module, kind.__qualname__):
        setattr(module, kind.__qualname__, kind)


def import_by_name(name: str) -> ModuleType:
    return importlib.import_module(name)


def import_by_file(name: str, file: str, path: list[str] | None) -> ModuleType:
    """A module that the parent has under a name that isn't on the path, as pytest's importlib mode does."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"can't import {name} from {file}", name=name, path=file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def remember_source(lines: dict[str, Any]) -> None:
    """Make source text without a file known to tracebacks."""
    linecache.cache.update(lines)
