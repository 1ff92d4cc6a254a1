"""A plan as text for people, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise, product
from typing import TYPE_CHECKING, Any

from meshsim.checker.wording import member_list
from meshsim.reports.tables import aligned

if TYPE_CHECKING:
    from meshlib import MeshPlan

SCHEMA_VERSION = 1
_GRID_RANKS = 512
_GROUPS_SHOWN = 8
_RANKS_SHOWN = 8


def mesh_text(plan: MeshPlan) -> str:
    """Table of views, grid of ranks, groups along every axis."""
    head = f"{plan.topology}: {plan.world_size} rank{'' if plan.world_size == 1 else 's'}"
    return "\n\n".join((head, _views(plan), _grid(plan), _groups(plan)))


def rank_text(plan: MeshPlan, rank: int) -> str:
    """Where one rank stands, and the ranks it shares each group with."""
    rows = [
        (view, axis, str(plan.size(axis)), str(place), members_text(plan.group(axis, rank)))
        for view in plan.views
        for axis, place in plan.coordinate(rank, view=view).items()
    ]
    head = f"rank {rank} of {plan.world_size} in {plan.topology}"
    return f"{head}\n\n{aligned(('view', 'axis', 'size', 'coordinate', 'group'), rows, right=(2, 3))}"


def mesh_data(plan: MeshPlan, rank: int | None = None) -> dict[str, Any]:
    """JSON-safe: the plan, its views, the groups along every axis; with ``rank``, its place and groups."""
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "topology": plan.topology,
        "world_size": plan.world_size,
        "plan": plan.to_json(),
        "views": {view: dict(zip(plan.axes(view), plan.shape(view), strict=True)) for view in plan.views},
    }
    if rank is None:
        data["groups"] = {axis: [list(group) for group in plan.groups(axis)] for axis in _axes(plan)}
        return data
    data["rank"] = rank
    data["coordinates"] = {view: dict(plan.coordinate(rank, view=view)) for view in plan.views}
    data["groups"] = {axis: list(plan.group(axis, rank)) for axis in _axes(plan)}
    return data


def members_text(ranks: Sequence[int]) -> str:
    """``[0,2,4]`` for a few ranks; of many in even steps the first, second and last: ``[0,8,...,1016]``."""
    step = ranks[1] - ranks[0] if len(ranks) > _RANKS_SHOWN else 1
    if step > 1 and all(b - a == step for a, b in pairwise(ranks)):
        return f"[{ranks[0]},{ranks[1]},...,{ranks[-1]}]"
    return member_list(ranks)


def _axes(plan: MeshPlan) -> list[str]:
    """Every axis of every view once."""
    return list(dict.fromkeys(axis for view in plan.views for axis in plan.axes(view)))


def _views(plan: MeshPlan) -> str:
    rows = [
        (
            view,
            "  ".join(f"{axis}={size}" for axis, size in zip(plan.axes(view), plan.shape(view), strict=True)),
        )
        for view in plan.views
    ]
    order = f"rank order, outermost first: {', '.join(plan.order)}"
    return f"{aligned(('view', 'axes'), rows)}\n{order}"


def _grid(plan: MeshPlan) -> str:
    """The dense view: one block for each pair of the outer coordinates, rows and columns the inner axes."""
    if plan.world_size > _GRID_RANKS:
        return f"ranks: the grid is drawn up to {_GRID_RANKS} ranks; --rank R shows one rank"
    split = [axis for axis in plan.axes("dense") if plan.size(axis) > 1]
    across = split[-1:]
    down = split[-2:-1]
    blocks = []
    for place in product(*(range(plan.size(axis)) for axis in split[:-2])):
        outer = dict(zip(split[:-2], place, strict=True))
        title = "  ".join(f"{axis} {value}" for axis, value in outer.items())
        blocks.append((title + "\n" if title else "") + _block(plan, outer, down, across))
    return "\n\n".join(blocks)


def _block(plan: MeshPlan, outer: dict[str, int], down: list[str], across: list[str]) -> str:
    columns = range(plan.size(across[0])) if across else range(1)
    rows = range(plan.size(down[0])) if down else range(1)
    zeros = dict.fromkeys(plan.axes("dense"), 0)
    head = ["rank", *(f"{across[0]} {column}" if across else "" for column in columns)]
    cells = []
    for row in rows:
        place = {**zeros, **outer, **({down[0]: row} if down else {})}
        ranks = [plan.rank(view="dense", **{**place, **({across[0]: c} if across else {})}) for c in columns]
        cells.append([f"{down[0]} {row}" if down else "", *map(str, ranks)])
    return aligned(head, cells, right=range(1, len(head)))


def _groups(plan: MeshPlan) -> str:
    rows = []
    for axis in _axes(plan):
        if plan.size(axis) == 1:
            rows.append((axis, "1", "each rank alone"))
            continue
        total = plan.world_size // plan.size(axis)
        firsts = (rank for rank in range(plan.world_size) if plan.is_first(axis, rank))
        groups = [plan.group(axis, rank) for rank in islice(firsts, _GROUPS_SHOWN)]
        more = f" and {total - _GROUPS_SHOWN} more" if total > _GROUPS_SHOWN else ""
        rows.append((axis, str(plan.size(axis)), " ".join(map(members_text, groups)) + more))
    return aligned(("axis", "size", "groups"), rows, right=(1,))
