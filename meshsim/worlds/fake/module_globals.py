"""A rank's own copy of a module's global variables, and of the class variables of the classes defined there.

Functions, classes and modules stay what they are; the data that they work on is each rank's own. What can't
be copied (a lock, a process group) is shared.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

_NOT_DATA = (FunctionType, type, ModuleType, property, classmethod, staticmethod)


@dataclass(slots=True)
class Globals:
    """One rank's: the module's variables, and each class's by name."""

    variables: dict[str, Any]
    of_classes: dict[type, dict[str, Any]]


def capture(module: ModuleType) -> Globals:
    """The variables as they are now; the objects themselves, not copies."""
    variables = dict(module.__dict__)
    classes = [
        value
        for value in variables.values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return Globals(variables, {owner: _class_variables(vars(owner)) for owner in classes})


def copies(modules: Sequence[Globals]) -> list[Globals]:
    """Copies for a new rank. An object under two names, or in two modules, stays one object."""
    memo: dict[int, Any] = {}
    return [
        Globals(
            _copied(contents.variables, memo),
            {owner: _copied(variables, memo) for owner, variables in contents.of_classes.items()},
        )
        for contents in modules
    ]


def install(module: ModuleType, contents: Globals) -> None:
    """Make the variables those of ``contents``; what others have added goes."""
    module.__dict__.clear()
    module.__dict__.update(contents.variables)
    for owner, variables in contents.of_classes.items():
        for name in _class_variables(vars(owner)).keys() - variables.keys():
            type.__delattr__(owner, name)
        for name, value in variables.items():
            if owner.__dict__.get(name) is not value:
                type.__setattr__(owner, name, value)


def _class_variables(names: MappingProxyType[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in names.items()
        if not name.startswith("__") and not isinstance(value, _NOT_DATA) and not hasattr(value, "__get__")
    }


def _copied(variables: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    return {
        name: value if name.startswith("__") or isinstance(value, _NOT_DATA) else _copy(value, memo)
        for name, value in variables.items()
    }


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001 - whatever a type raises that can't be copied
        return value
