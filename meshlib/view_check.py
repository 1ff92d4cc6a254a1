"""Views that the caller adds: reading them, and proving that shared axis names mean the same groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from meshlib.axes import BUILT_IN_VIEWS, DERIVED_AXES
from meshlib.errors import Problem, TopologyError, topology_error
from meshlib.integers import exact_int, product_text
from meshlib.rank_text import groups_text, names_text, rank_list_text

if TYPE_CHECKING:
    from meshlib.plan import MeshPlan
    from meshlib.views import View

_FORM = 'views={"name": (("outer_axis", 2), ("inner_axis", 4))}'
_SMALL_WORLD = 32
_SHOWN_GROUPS = 3
_SHOWN_RANKS = 16


def read_views(
    views: Mapping[str, Mapping[str, int] | Iterable[tuple[str, int]]] | None, world_size: int
) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """Checked views, each a factorisation of the whole world. A ``TopologyError`` names every problem."""
    if views is None:
        return ()
    if not isinstance(views, Mapping):
        raise TopologyError(f"views must be a mapping, {_FORM}, not {type(views).__name__}")
    problems: list[Problem] = []
    read = []
    for name, parts in views.items():
        pairs, wrong = _read_view(name, parts, world_size)
        problems += wrong
        read.append((name, pairs))
    if problems:
        raise topology_error(problems, "views")
    return tuple(read)


def _read_view(name: Any, parts: Any, world_size: int) -> tuple[tuple[tuple[str, int], ...], list[Problem]]:
    if not isinstance(name, str) or not name:
        return (), [Problem("", f"a view's name must be text, got {name!r}; write {_FORM}")]
    if name in BUILT_IN_VIEWS:
        return (), [Problem("", f"view {name!r} exists already; choose another name")]
    try:
        pairs = [(axis, size) for axis, size in (parts.items() if isinstance(parts, Mapping) else parts)]
    except (TypeError, ValueError):
        return (), [Problem("", f"view {name!r} must be (axis, size) pairs, got {parts!r}; write {_FORM}")]
    problems = []
    sizes = []
    for axis, size in pairs:
        number = exact_int(size)
        if not isinstance(axis, str) or not axis.isidentifier() or axis == "view":
            problems.append(Problem("", f"view {name!r}: {axis!r} can't be an axis name; use an identifier"))
        elif number is None or number < 1:
            problems.append(Problem(str(axis), f"view {name!r}: the size must be at least 1, got {size!r}"))
        else:
            sizes.append(number)
    axes = [axis for axis, _ in pairs]
    twice = sorted({str(axis) for axis in axes if axes.count(axis) > 1})
    if twice:
        problems.append(Problem("", f"view {name!r} names {names_text(twice)} twice; each axis once"))
    if not problems and math.prod(sizes) != world_size:
        text = product_text(axes, sizes) if axes else "no axes"
        problems.append(
            Problem("", f"view {name!r}: {text}, but the span is the world of {world_size} ranks")
        )
    return tuple(zip(axes, sizes, strict=False)) if not problems else (), problems


def check_views(plan: MeshPlan) -> None:
    """Refuse a plan where one axis name means different groups in two views; the message shows both."""
    if not plan.custom_views:
        return  # the built-in views agree by construction: they take pp and tp from the dense arithmetic
    problems = []
    homes: dict[str, tuple[str, View, tuple[int, ...]]] = {}
    for axis, spellings in DERIVED_AXES.items():
        for view_name in BUILT_IN_VIEWS:
            view = plan._view(view_name)
            if set(spellings[0]) <= set(view.axes):
                homes[axis] = (view_name, view, tuple(view.axes.index(base) for base in spellings[0]))
                break
    for view_name in BUILT_IN_VIEWS:
        view = plan._view(view_name)
        for place, axis in enumerate(view.axes):
            homes.setdefault(axis, (view_name, view, (place,)))
    for view_name, _ in plan.custom_views:
        view = plan._view(view_name)
        for place, axis in enumerate(view.axes):
            first = homes.setdefault(axis, (view_name, view, (place,)))
            if first[1] is view:
                continue
            differs = _first_difference(first[1], first[2], view, (place,), plan.world_size)
            if differs is not None:
                mine = _groups_from(differs, view, (place,), plan.world_size)
                theirs = _groups_from(differs, first[1], first[2], plan.world_size)
                reason = f"its groups are {theirs} in the {first[0]} view, but {mine} in view {view_name!r}"
                problems.append(Problem(axis, reason, fix=f"another name for the axis in {view_name!r}"))
    if problems:
        raise topology_error(problems, "views disagree")


def _first_difference(
    one: View, one_places: tuple[int, ...], other: View, other_places: tuple[int, ...], world_size: int
) -> int | None:
    """The lowest rank whose groups differ; None where all groups are equal."""
    size = math.prod(one.shape[place] for place in one_places)
    if size != math.prod(other.shape[place] for place in other_places):
        return 0
    ranks = (rank for rank in range(world_size) if one.first(one_places, rank) == rank)
    return next((r for r in ranks if one.group(one_places, r) != other.group(other_places, r)), None)


def _groups_from(rank: int, view: View, places: tuple[int, ...], world_size: int) -> str:
    """All groups of a small world; of a large one a few, from that of ``rank`` on."""
    small = world_size <= _SMALL_WORLD
    firsts = (r for r in range(0 if small else view.first(places, rank), world_size))
    groups = (view.group(places, r) for r in firsts if view.first(places, r) == r)
    if small:
        return groups_text(list(groups))
    count = world_size // math.prod(view.shape[place] for place in places)
    shown = list(islice(groups, _SHOWN_GROUPS))
    text = " ".join(rank_list_text(group, _SHOWN_RANKS) for group in shown)
    return text if count == len(shown) else f"{text} ... ({count} groups)"
