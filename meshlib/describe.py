"""Plans as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshlib.rank_text import groups_text, names_text, rank_list_text
from meshlib.size_rules import SIZE_AXES

if TYPE_CHECKING:
    from meshlib.plan import MeshPlan

_SHOWN_GROUPS = 4
_DERIVED = ("dp_cp", "edp", "mp", "stage", "world")


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns; the last column isn't padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


def describe(plan: MeshPlan) -> str:
    """All views with their axes, sizes and first groups."""
    lines = [f"{plan.topology}: {plan.world_size} rank{'s' if plan.world_size != 1 else ''}"]
    lines.append(f"rank order {names_text(plan.order)} (outermost first), experts from each {plan.ep_scope}")
    if plan.node_size is not None:
        nodes = -(-plan.world_size // plan.node_size)
        lines.append(f"{nodes} node{'s' if nodes != 1 else ''} of {plan.node_size} ranks")
    for view in plan.views:
        lines += ["", f"view {view}: shape {plan.shape(view)}"]
        lines += _axis_rows(plan, plan.axes(view))
    lines += ["", "derived axes"]
    lines += _axis_rows(plan, _DERIVED)
    return "\n".join(lines)


def _axis_rows(plan: MeshPlan, axes: Sequence[str]) -> list[str]:
    rows = [["  axis", "size", *(["nodes"] if plan.node_size else []), "groups"]]
    for axis in axes:
        row = [f"  {axis}", str(plan.size(axis))]
        if plan.node_size:
            row.append("crosses" if plan.crosses_nodes(axis) else "inside")
        rows.append([*row, _first_groups(plan, axis)])
    return _table(rows)


def _first_groups(plan: MeshPlan, axis: str) -> str:
    """The groups of the lowest ranks, without listing the world's."""
    count = plan.world_size // plan.size(axis)
    shown: list[tuple[int, ...]] = []
    for rank in range(plan.world_size):
        if len(shown) == _SHOWN_GROUPS:
            break
        if plan.is_first(axis, rank):
            shown.append(plan.group(axis, rank))
    text = groups_text(shown)
    return text if count <= _SHOWN_GROUPS else f"{text} ... ({count} groups)"


def explain(plan: MeshPlan, rank: int) -> str:
    """A rank's coordinate in every view, and its group and neighbours along each axis above size 1."""
    lines = [f"rank {rank} of {plan.topology} ({plan.world_size} ranks)"]
    if plan.node_size is not None:
        lines.append(f"on node {plan.node(rank)}, place {rank % plan.node_size}")
    rows = []
    seen: set[str] = set()
    for view in plan.views:
        place = ", ".join(f"{axis} {number}" for axis, number in plan.coordinate(rank, view).items())
        lines.append(f"{view}: {place}")
        for axis in plan.axes(view):
            if axis not in seen and plan.size(axis) > 1:
                rows.append(_axis_of_rank(plan, axis, rank))
            seen.add(axis)
    if rows:
        lines += ["", *_table([["axis", "place", "before", "after", "group"], *rows])]
    else:
        lines.append("every axis has size 1: it is alone in each group")
    return "\n".join(lines)


def _axis_of_rank(plan: MeshPlan, axis: str, rank: int) -> list[str]:
    before, after = plan.neighbour(axis, rank, -1, wrap=False), plan.neighbour(axis, rank, 1, wrap=False)
    return [
        axis,
        f"{plan.local_rank(axis, rank)} of {plan.size(axis)}",
        "first" if before is None else str(before),
        "last" if after is None else str(after),
        rank_list_text(plan.group(axis, rank), 16),
    ]


def diff(plan: MeshPlan, other: MeshPlan) -> str:
    """Settings that differ, then axes whose groups differ."""
    lines = [
        f"{name}: {ours} here, {theirs} there"
        for name, ours, theirs in _settings(plan, other)
        if ours != theirs
    ]
    if not lines:
        return ""
    if plan.world_size == other.world_size:
        lines += _differing_groups(plan, other)
    return "\n".join(lines)


def _settings(plan: MeshPlan, other: MeshPlan) -> list[tuple[str, Any, Any]]:
    ours, theirs = plan.dims.sizes(), other.dims.sizes()
    return [
        ("world_size", plan.world_size, other.world_size),
        *((axis, ours[axis], theirs[axis]) for axis in SIZE_AXES),
        ("order", plan.order, other.order),
        ("ep_scope", plan.ep_scope, other.ep_scope),
        ("views", dict(plan.custom_views), dict(other.custom_views)),
        ("node_size", plan.node_size, other.node_size),
    ]


def _differing_groups(plan: MeshPlan, other: MeshPlan) -> list[str]:
    lines = []
    axes = dict.fromkeys(axis for view in plan.views for axis in plan.axes(view))
    known = {axis for view in other.views for axis in other.axes(view)}
    for axis in axes:
        if axis not in known:
            lines.append(f"{axis}: an axis here, none there")
            continue
        moved = next((r for r in range(plan.world_size) if plan.group(axis, r) != other.group(axis, r)), None)
        if moved is not None:
            ours, theirs = plan.group(axis, moved), other.group(axis, moved)
            lines.append(
                f"{axis}: rank {moved} is in {rank_list_text(ours, 16)} here, "
                f"{rank_list_text(theirs, 16)} there"
            )
    lines += [f"{axis}: none here, an axis there" for axis in sorted(known - set(axes))]
    return lines
