"""A plan as the page draws it: each rank's coordinates, and the groups along every axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshlib import MeshPlan


def mesh_data(plan: MeshPlan) -> dict[str, Any]:
    """JSON-safe. Axes of size 1 are left out; axes with the same groups share one entry.

    ``dense`` are the dense axes in rank order, outermost first, with their sizes, ``places`` each rank's
    coordinates along them. An entry of ``axes`` has its ``names``, its ``size`` and by rank the number of
    the ``groups``, of which the first is that of rank 0.
    """
    axes = plan.axes("dense")
    dense = [axis for axis in plan.order if plan.size(axis) > 1]
    kept = [axes.index(axis) for axis in dense]
    places = []
    for rank in range(plan.world_size):
        values = tuple(plan.coordinate(rank).values())
        places.append([values[place] for place in kept])
    return {
        "dense": [[axis, plan.size(axis)] for axis in dense],
        "places": places,
        "axes": _axes(plan),
    }


def _axes(plan: MeshPlan) -> list[dict[str, Any]]:
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    for view in plan.views:
        for axis in plan.axes(view):
            if plan.size(axis) == 1:
                continue
            numbers = _group_numbers(plan, axis)
            entry = found.setdefault(numbers, {"names": [], "size": plan.size(axis), "groups": list(numbers)})
            if axis not in entry["names"]:
                entry["names"].append(axis)
    return list(found.values())


def _group_numbers(plan: MeshPlan, axis: str) -> tuple[int, ...]:
    numbers = [0] * plan.world_size
    for number, group in enumerate(plan.groups(axis)):
        for rank in group:
            numbers[rank] = number
    return tuple(numbers)
