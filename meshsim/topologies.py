"""From what a caller asks for (text, sizes, rank counts) to plans."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import index
from typing import Any

from meshlib import MeshPlan, ParallelDims
from meshsim.errors import UsageError


def parse_dims(topology: str | ParallelDims | None) -> ParallelDims:
    """The requested sizes; None asks for nothing, so that all ranks are data parallel."""
    return ParallelDims() if topology is None else ParallelDims.of(topology)


def build_plan(
    topology: str | ParallelDims | None,
    world_size: int | None = None,
    *,
    order: Any = None,
    ep_scope: str = "stage",
    node_size: int | None = None,
) -> MeshPlan:
    """The plan of a topology at ``world_size`` ranks, or at the number of ranks that its own sizes make."""
    dims = parse_dims(topology)
    size = dims.own_world_size() if world_size is None else check_world_size(world_size)
    options = {} if order is None else {"order": order}
    return MeshPlan.build(dims, size, ep_scope=ep_scope, node_size=node_size, **options)


def default_world_size(dims: ParallelDims, job_size: int | None = None) -> int:
    """The number of ranks where none is given: that of the sizes, or in a job of ``job_size`` ranks, when the
    data parallel sizes are unset, all of them.
    """
    sizes = dims.sizes()
    if job_size is not None and all(sizes[axis] is None for axis in ("dp", "dp_replicate", "dp_shard")):
        return job_size
    return dims.own_world_size()


def topology_text(dims: ParallelDims, world_size: int) -> str:
    """The sizes as asked for; with none asked for, the dp that the world makes."""
    return str(dims) or f"dp={world_size}"


def parse_order(order: str | None) -> tuple[str, ...] | None:
    """A rank order from text, outermost axis first: ``pp,dp,cp,tp``."""
    return tuple(order.replace(" ", "").split(",")) if order else None


def check_world_size(value: Any) -> int:
    """An exact count of at least one rank."""
    if not isinstance(value, bool):
        try:
            size = index(value)
        except TypeError:
            pass
        else:
            if size >= 1:
                return size
    raise UsageError(f"world_size must be a whole number of at least 1, got {value!r}")


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Rank counts from text: ``8``, ``1-8``, ``1,2,4-6``, ascending and without repeats."""
    sizes: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if first < 1 or last < first:
            raise UsageError(
                f"world sizes {text!r} can't be read; give counts from 1 on, such as 8, 1-8 or 1,2,4-6"
            )
        sizes.update(range(first, last + 1))
    return tuple(sorted(sizes))


def check_world_sizes(values: Iterable[int] | int | str) -> tuple[int, ...]:
    """Rank counts as a caller gave them, ascending and without repeats."""
    if isinstance(values, str):
        return parse_world_sizes(values)
    listed = list(values) if isinstance(values, Iterable) else [values]
    if not listed:
        raise UsageError("world_sizes is empty; give at least one rank count, such as range(1, 9)")
    return tuple(sorted({check_world_size(value) for value in listed}))
