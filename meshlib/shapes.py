"""Checking mesh names, shapes and rank lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshlib.errors import TopologyError
from meshlib.integers import divisors, exact_int
from meshlib.rank_text import names_text, ranks_text


def checked_shape(mesh_shape: Any) -> tuple[int, ...]:
    """Sizes of at least 1 as plain ints."""
    if isinstance(mesh_shape, str) or not isinstance(mesh_shape, Sequence):
        sizes = _iterated(mesh_shape)
        if sizes is None:
            raise TopologyError(f"mesh_shape must be a tuple of sizes, such as (2, 4), got {mesh_shape!r}")
    else:
        sizes = list(mesh_shape)
    if not sizes:
        raise TopologyError("mesh_shape is empty; give a size for each axis, such as (2, 4)")
    shape = tuple(exact_int(size) for size in sizes)
    if any(size is None or size < 1 for size in shape):
        raise TopologyError(
            f"mesh_shape {tuple(sizes)} must hold whole numbers of at least 1, such as (2, 4)"
        )
    return tuple(size for size in shape if size is not None)


def _iterated(value: Any) -> list[Any] | None:
    """Arrays and tensors iterate without being sequences."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return None
    return list(value.tolist() if hasattr(value, "tolist") else value)


def checked_names(mesh_dim_names: Any, ndim: int) -> tuple[str, ...]:
    """One name for each axis, all different."""
    if isinstance(mesh_dim_names, str) or not isinstance(mesh_dim_names, Sequence):
        raise TopologyError(
            f"mesh_dim_names must be a tuple of names, such as ('dp', 'tp'), got {mesh_dim_names!r}"
        )
    names = tuple(mesh_dim_names)
    if not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f"mesh_dim_names {names} must hold text only, such as ('dp', 'tp')")
    if len(names) != ndim:
        count = f"{len(names)} name{'s' if len(names) != 1 else ''}"
        raise TopologyError(f"{count} {names} for {ndim} sizes: give one name for each axis")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TopologyError(
            f"mesh_dim_names {names} name {names_text(twice)} twice; each axis needs its own name"
        )
    return names


def checked_rank_list(
    rank_list: Any, shape: tuple[int, ...], world_size: int | None, source: str
) -> tuple[int, ...]:
    """One rank for each place of the shape, each once and in the world."""
    listed = _iterated(rank_list)
    if listed is None:
        raise TopologyError(f"rank_list must list ranks, such as (4, 5, 6, 7), got {rank_list!r}")
    read = [exact_int(rank) for rank in listed]
    ranks = tuple(rank for rank in read if rank is not None)
    if len(ranks) != len(read):
        raise TopologyError(f"rank_list {listed} must hold whole numbers, such as (4, 5, 6, 7)")
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        raise TopologyError(f"rank_list {list(ranks)} holds duplicates: {ranks_text(twice)}; each rank once")
    outside = [rank for rank in ranks if rank < 0 or (world_size is not None and rank >= world_size)]
    if outside:
        where = "ranks start at 0" if world_size is None else f"ranks are 0 to {world_size - 1} ({source})"
        raise TopologyError(f"rank_list {list(ranks)}: {ranks_text(outside)} out of range; {where}")
    places = math.prod(shape)
    if len(ranks) != places:
        raise TopologyError(
            f"rank_list has {len(ranks)} ranks for {places} places of shape {shape}; "
            f"give {places} ranks, or a shape of {len(ranks)}"
        )
    return ranks


def check_covers_world(shape: tuple[int, ...], world_size: int, source: str) -> None:
    """Without a rank list a mesh holds every rank."""
    places = math.prod(shape)
    if places > world_size:
        raise TopologyError(
            f"shape {shape} needs {places} ranks, has {world_size} ({source}); "
            f"use a shape of {world_size} ranks such as {_fitting(shape, world_size)}, "
            f"or start {places} ranks"
        )
    if places < world_size:
        missing = ranks_text(range(places, world_size))
        raise TopologyError(
            f"shape {shape} covers {places} of {world_size} ranks ({source}), missing {missing}; "
            f"use {_fitting(shape, world_size)}, or give rank_list= for a part of the world"
        )


def _fitting(shape: tuple[int, ...], world_size: int) -> tuple[int, ...]:
    """A shape of the whole world that keeps the inner sizes as far as they divide it."""
    left = world_size
    sizes: list[int] = []
    for size in reversed(shape[1:]):
        fits = max(d for d in divisors(left) if d <= size)
        sizes.insert(0, fits)
        left //= fits
    return (left, *sizes)
