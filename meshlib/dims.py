"""The sizes that somebody asks for, as text or as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshlib.errors import Problem, TopologyError, topology_error
from meshlib.integers import exact_int, meant_size
from meshlib.rank_text import closest_name, did_you_mean, names_text
from meshlib.size_rules import (
    DEFAULTS_TO_ONE,
    EP_SCOPES,
    INFERRED,
    SIZE_AXES,
    Resolution,
    own_world_size,
    read_sizes,
)


@dataclass(frozen=True)
class ParallelDims:
    """Requested sizes. None is unset; at most one may be -1, which means inferred.

    Unset ``dp`` follows from the world size. Of ``dp_replicate`` and ``dp_shard``, one that is given fixes
    the other; with neither, ``dp_replicate`` is 1. ``edp_shard`` defaults to 1 (it follows under
    ``ep_scope="replica"``), the other sizes to 1. With another size than dp at -1, an unset dp is 1, or
    what ``dp_replicate * dp_shard`` ask for.

    Sizes are exact whole numbers of any integer type; anything else is a ``TopologyError``, as are 0 and
    below -1.
    """

    dp_size: int | None = None
    dp_replicate_size: int | None = None
    dp_shard_size: int | None = None
    cp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    edp_shard_size: int | None = None
    _expert_request: tuple[tuple[str, int | None], ...] = field(
        init=False, repr=False, compare=False, default=()
    )
    """What was asked for in place of the expert sizes that :meth:`resolve` filled in: they depend on the
    scope, so a further resolve fills them in anew.
    """

    def __post_init__(self) -> None:
        sizes, problems = read_sizes({axis: getattr(self, f"{axis}_size") for axis in SIZE_AXES})
        if problems:
            raise topology_error(problems, "wrong sizes")
        for axis, size in sizes.items():
            object.__setattr__(self, f"{axis}_size", size)

    @classmethod
    def parse(cls, text: str) -> ParallelDims:
        """Sizes from topology text such as ``dp=4,tp=2,pp=2``; empty text asks for nothing.

        All that is wrong with the text comes in one ``TopologyError``.
        """
        values, problems = _read_text(text)
        sizes, wrong = read_sizes(values)
        problems += wrong
        if problems:
            raise topology_error(problems, f"topology {text!r}")
        return cls(**{f"{axis}_size": size for axis, size in sizes.items()})  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Topology text that parses to equal sizes."""
        named = ((axis, size) for axis, size in self.sizes().items() if size is not None)
        return ",".join(f"{axis}={size}" for axis, size in named if size != 1 or axis not in DEFAULTS_TO_ONE)

    def sizes(self) -> dict[str, int | None]:
        """``{"dp": 4, "dp_replicate": None, ...}``: axis names and requested sizes."""
        return {axis: getattr(self, f"{axis}_size") for axis in SIZE_AXES}

    def resolve(self, world_size: int, *, ep_scope: str = "stage") -> ParallelDims:
        """All sizes filled in for a world; a ``TopologyError`` with every problem where they don't fit.

        Expert sizes that nobody gave may be resolved again under another ``ep_scope``.
        """
        size = checked_world_size(world_size)
        if ep_scope not in EP_SCOPES:
            raise TopologyError(f"ep_scope must be 'stage' or 'replica', got {ep_scope!r}")
        requested = {**self.sizes(), **dict(self._expert_request)}
        resolution = Resolution(requested, size, ep_scope)
        if resolution.problems:
            subject = f"topology '{self}' in a world of {size}"
            raise topology_error(resolution.problems, subject)
        resolved = ParallelDims(**{f"{axis}_size": s for axis, s in resolution.sizes.items()})  # type: ignore[arg-type]
        inferred = tuple((axis, requested[axis]) for axis in ("ep", "edp_shard"))
        inferred = tuple((axis, asked) for axis, asked in inferred if asked in (None, INFERRED))
        object.__setattr__(resolved, "_expert_request", inferred)
        return resolved

    def own_world_size(self) -> int:
        """The number of ranks that these sizes ask for by themselves.

        An unset dp counts as 1, or as what ``dp_replicate * dp_shard`` ask for. A ``TopologyError`` where
        another size is -1: only a world size could fix that one.
        """
        size, problems = own_world_size(self.sizes())
        if problems:
            raise topology_error(problems, f"topology '{self}'")
        return size

    @classmethod
    def of(cls, dims: ParallelDims | str | Mapping[str, Any]) -> ParallelDims:
        """Dims from dims, from topology text, or from a mapping with ``tp_size`` and the like."""
        if isinstance(dims, ParallelDims):
            return dims
        if isinstance(dims, str):
            return cls.parse(dims)
        if isinstance(dims, Mapping):
            unknown = sorted(set(map(str, dims)) - {f"{axis}_size" for axis in SIZE_AXES})
            if unknown:
                known = ", ".join(f"{axis}_size" for axis in SIZE_AXES)
                near = closest_name(unknown[0], SIZE_AXES)
                hint = f": did you mean {near}_size?" if near else ""
                raise TopologyError(f"unknown sizes {', '.join(unknown)}{hint}; known are {known}")
            return cls(**dims)
        raise TopologyError(
            f"sizes must be ParallelDims or text such as 'dp=2,tp=2', not {type(dims).__name__}: {dims!r}"
        )


def checked_world_size(world_size: Any) -> int:
    """An exact count of at least one rank."""
    size = exact_int(world_size)
    if size is None or size < 1:
        raise TopologyError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    return size


_PART = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([+-]?\d+)\s*", re.ASCII)


def _read_text(text: Any) -> tuple[dict[str, Any], list[Problem]]:
    if not isinstance(text, str):
        raise TopologyError(f"topology must be text such as 'dp=2,tp=2', not {type(text).__name__}: {text!r}")
    values: dict[str, Any] = dict.fromkeys(SIZE_AXES)
    problems: list[Problem] = []
    seen: set[str] = set()
    for part in text.split(",") if text.strip() else ():
        match = _PART.fullmatch(part)
        if match is None:
            problems.append(_unreadable(part))
            continue
        axis, size = match[1], int(match[2])
        if axis not in values:
            hint = did_you_mean(axis, SIZE_AXES)
            problems.append(Problem("", f"unknown axis {axis!r}{hint}; known are {names_text(SIZE_AXES)}"))
        elif axis in seen:
            problems.append(Problem(axis, "is given twice", fix=f"one {axis}="))
        else:
            values[axis] = size
        seen.add(axis)
    return values, problems


_SEPARATED = re.compile(r"{0}(?:[\s;:|/&+*]+{0})+".format(r"[A-Za-z_]\w*\s*=\s*[+-]?\d+"), re.ASCII)


def _unreadable(part: str) -> Problem:
    text = part.strip()
    if _SEPARATED.fullmatch(text):
        sizes = [f"{match[1]}={match[2]}" for match in _PART.finditer(text)]
        return Problem("", f"can't read {text!r}: separate sizes by commas", fix=",".join(sizes))
    name, _, value = (side.strip() for side in text.partition("="))
    if name in SIZE_AXES and value:
        return Problem(name, f"must be a whole number, got {value!r}", fix=f"{name}={meant_size(value)}")
    return Problem("", f"can't read {text!r}; write axis=size, such as tp=2")
