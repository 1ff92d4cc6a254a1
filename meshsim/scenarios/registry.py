"""From the text of a target to the scenario's function."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from meshsim.errors import UsageError
from meshsim.scenarios.built_in import BUILT_IN
from meshsim.scenarios.loading import from_file, from_module

if TYPE_CHECKING:
    from meshsim.worlds.base import Scenario

ENTRY_POINT_GROUP = "meshsim.scenarios"
"""A distribution adds a scenario with an entry point of this group: ``name = "module:function"``."""


def load(target: str) -> Scenario:
    """The scenario that ``target`` names: ``path.py::name``, ``module:name``, or the name of a known one.

    ``UsageError`` in one line where there is none: an unknown name, a missing file or module, a missing name
    in it, something that isn't callable.
    """
    if not isinstance(target, str) or not target.strip():
        raise UsageError(f"a scenario is a file.py::name, a module:name or a known name, got {target!r}")
    target = target.strip()
    path, colons, name = target.rpartition("::")
    if colons:
        return checked(from_file(path, name), target)
    module, colon, name = target.rpartition(":")
    if colon:
        return checked(from_module(module, name), target)
    return checked(_known(target), target)


def available() -> tuple[str, ...]:
    """Names of the built-in scenarios, then of those that entry points add."""
    added = sorted({point.name for point in _entry_points()} - set(BUILT_IN))
    return (*BUILT_IN, *added)


def describe_all() -> list[tuple[str, str]]:
    """Each available scenario's name and what it checks, in one line. Imports no scenario."""
    added = {point.name: f"added by {_origin(point)}" for point in reversed(_entry_points())}
    return [(name, BUILT_IN[name][1] if name in BUILT_IN else added[name]) for name in available()]


def _known(name: str) -> Any:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name][0].partition(":")
        return from_module(module, attribute)
    for point in _entry_points():
        if point.name == name:
            return _from_entry_point(point)
    raise UsageError(_unknown(name))


def _from_entry_point(point: EntryPoint) -> Any:
    module, _, attribute = point.value.partition(":")
    try:
        return from_module(module.strip(), attribute.partition("[")[0].strip())
    except UsageError as error:
        raise UsageError(f"scenario {point.name!r}, added by {_origin(point)}: {error}") from error.__cause__


def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _origin(point: EntryPoint) -> str:
    name = point.dist.name if point.dist is not None else "an entry point"
    return f"{name} ({point.value})"


def _unknown(name: str) -> str:
    names = available()
    if name.endswith(".py") or os.sep in name:
        return f"scenario {name!r} names no function; write it as {name}::name"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"scenario {name!r} is unknown; {hint}known are {', '.join(names)}, "
        "and your own are written file.py::name or module:name"
    )


def checked(found: Any, target: str) -> Callable[..., Any]:
    """What was found, if it can be called."""
    if not callable(found):
        raise UsageError(
            f"scenario {target!r} is a {type(found).__name__}, not a function that takes the rank's context"
        )
    return found  # type: ignore[no-any-return]
