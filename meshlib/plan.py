"""The plan: all views of all ranks, frozen, without torch and without process groups."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshlib.axes import DENSE_AXES, DERIVED_AXES, base_axis, built_in_places, places_in, spellings
from meshlib.dims import ParallelDims, checked_world_size
from meshlib.errors import MeshError, TopologyError, UnknownAxis
from meshlib.integers import checked_rank, exact_int
from meshlib.order import checked_order, order_from_megatron
from meshlib.rank_text import did_you_mean, names_text
from meshlib.view_check import check_views, read_views
from meshlib.views import DenseView, FsdpView, RowMajorView, View, expert_view

SCHEMA_VERSION = 1

Axes = "str | Sequence[str]"
ViewSizes = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


@dataclass(frozen=True)
class MeshPlan:
    """Coordinates and groups of every rank in every view. Build it with :meth:`build`.

    Ranks are global everywhere. Every axis always answers, at size 1 too. A call takes O(axes), and
    O(group) where a group is the answer; nothing grows with the world.
    """

    world_size: int
    dims: ParallelDims
    """The sizes, all of them filled in."""
    order: tuple[str, ...] = DENSE_AXES
    """The dense axes in rank order, outermost first."""
    ep_scope: str = "stage"
    custom_views: ViewSizes = ()
    node_size: int | None = None
    _views: dict[str, View] = field(init=False, repr=False, compare=False, default_factory=dict)

    # Building

    @classmethod
    def build(
        cls,
        dims: ParallelDims | str,
        world_size: int,
        *,
        order: Sequence[str] | None = None,
        ep_scope: str = "stage",
        views: Mapping[str, Mapping[str, int] | Iterable[tuple[str, int]]] | None = None,
        node_size: int | None = None,
    ) -> MeshPlan:
        """The plan of sizes (``ParallelDims`` or topology text) for a world.

        ``order`` is the rank order of ``pp, dp, cp, tp``, outermost first; axes of size 1 can be left out.
        ``ep_scope`` is ``"stage"`` or ``"replica"``. ``views`` maps a name to ``((axis, size), ...)`` or
        ``{axis: size, ...}``, outermost first: a further factorisation of the whole world. ``node_size`` is
        the number of ranks of a machine.

        Raises ``TopologyError`` with every problem of the sizes, or with both group lists where two views
        give one axis name to different groups.
        """
        world = checked_world_size(world_size)
        resolved = ParallelDims.of(dims).resolve(world, ep_scope=ep_scope)
        plan = cls(
            world_size=world,
            dims=resolved,
            order=checked_order(order, resolved.sizes()),
            ep_scope=ep_scope,
            custom_views=read_views(views, world),
            node_size=_checked_node_size(node_size),
        )
        check_views(plan)
        return plan

    def __post_init__(self) -> None:
        sizes = {axis: size or 1 for axis, size in self.dims.sizes().items()}
        dense = DenseView(sizes, self.order)
        self._views.update(
            dense=dense,
            fsdp=FsdpView(dense, sizes["dp_replicate"], sizes["dp_shard"]),
            expert=expert_view(
                dense,
                fsdp_shard=sizes["dp_shard"],
                shard=sizes["edp_shard"],
                ep=sizes["ep"],
                ep_scope=self.ep_scope,
            ),
        )
        for name, parts in self.custom_views:
            self._views[name] = RowMajorView(tuple(a for a, _ in parts), tuple(s for _, s in parts))

    order_from_megatron = staticmethod(order_from_megatron)

    # Views and sizes

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views: ``dense``, ``fsdp``, ``expert``, then those that were added."""
        return tuple(self._views)

    def axes(self, view: str = "dense") -> tuple[str, ...]:
        """Axis names of a view, outermost first."""
        return self._view(view).axes

    def shape(self, view: str = "dense") -> tuple[int, ...]:
        """Sizes of a view's axes."""
        return self._view(view).shape

    def size(self, axis: str | Sequence[str]) -> int:
        """The number of ranks of a group along an axis, or along several."""
        view, places = self._places(axis)
        return math.prod(view.shape[place] for place in places)

    @cached_property
    def topology(self) -> str:
        """Topology text that gives this plan's sizes: what is above 1 and doesn't follow; ``dp=1`` for
        one rank.
        """
        named = {axis: size for axis, size in self.dims.sizes().items() if size != 1 and axis != "dp_shard"}
        if self.ep_scope == "replica":
            named.pop("edp_shard", None)
        return ",".join(f"{axis}={size}" for axis, size in named.items()) or "dp=1"

    # Ranks and coordinates

    def coordinate(self, rank: int, view: str = "dense") -> dict[str, int]:
        """``{"pp": 0, "dp": 1, ...}``: where a rank is in a view."""
        of = self._view(view)
        return dict(zip(of.axes, of.digits(self._rank(rank)), strict=True))

    def rank(self, view: str = "dense", **coordinate: int) -> int:
        """The rank at a coordinate; axes of size 1 can be left out. The inverse of :meth:`coordinate`.

        An axis goes by its other names too, where they mean one axis of the view: ``fsdp`` for
        ``fsdp_shard``.
        """
        of = self._view(view)
        coordinate = self._checked_coordinate(view, of, coordinate)
        missing = [a for a, s in zip(of.axes, of.shape, strict=True) if s > 1 and a not in coordinate]
        if missing:
            example = ", ".join(f"{axis}=0" for axis in missing)
            raise MeshError(
                f"a rank of the {view} view ({names_text(of.axes)}) needs {names_text(missing)} too, "
                f"such as {example}"
            )
        return of.rank_of(tuple(coordinate.get(axis, 0) for axis in of.axes))

    def ranks(self, view: str = "dense", **coordinate: int) -> tuple[int, ...]:
        """All ranks with these coordinates, ascending: ``plan.ranks(pp=0, dp=1)``."""
        of = self._view(view)
        coordinate = self._checked_coordinate(view, of, coordinate)
        free = tuple(place for place, axis in enumerate(of.axes) if axis not in coordinate)
        fixed = of.rank_of(tuple(coordinate.get(axis, 0) for axis in of.axes))
        return of.group(free, fixed)

    def local_rank(self, axis: str | Sequence[str], rank: int) -> int:
        """A rank's place in its group along an axis (or several): its rank in the process group."""
        view, places = self._places(axis)
        number = self._rank(rank)
        if len(places) == 1:
            return view.digits(number)[places[0]]
        return view.group(places, number).index(number)

    # Groups

    def group(self, axes: str | Sequence[str], rank: int) -> tuple[int, ...]:
        """Ascending ranks that share ``rank``'s group along one axis or several."""
        view, places = self._places(axes)
        return view.group(places, self._rank(rank))

    def groups(self, axes: str | Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """All groups along one axis or several, by their lowest rank; each rank is in one."""
        view, places = self._places(axes)
        firsts = (rank for rank in range(self.world_size) if view.first(places, rank) == rank)
        return tuple(view.group(places, rank) for rank in firsts)

    def neighbour(self, axis: str | Sequence[str], rank: int, step: int, wrap: bool = True) -> int | None:
        """The rank ``step`` places further along an axis; past the end it comes round, or is None
        without ``wrap``.
        """
        view, places = self._places(axis)
        number, by = self._rank(rank), exact_int(step)
        if by is None:
            raise MeshError(f"step must be a whole number, such as 1 or -1, got {step!r}")
        if len(places) == 1:
            digits, place = list(view.digits(number)), places[0]
            here, size = digits[place], view.shape[place]
            digits[place] = (here + by) % size
            return view.rank_of(tuple(digits)) if wrap or 0 <= here + by < size else None
        group = view.group(places, number)
        here = group.index(number) + by
        return group[here % len(group)] if wrap or 0 <= here < len(group) else None

    def is_first(self, axis: str | Sequence[str], rank: int) -> bool:
        """Whether a rank is the first of its group along an axis."""
        view, places = self._places(axis)
        return view.first(places, self._rank(rank)) == rank

    def is_last(self, axis: str | Sequence[str], rank: int) -> bool:
        """Whether a rank is the last of its group along an axis."""
        view, places = self._places(axis)
        return view.last(places, self._rank(rank)) == rank

    def axis_of(self, ranks: Iterable[int]) -> str:
        """The name of the axis along which these ranks are a group.

        Base axes above size 1 come first, dense before FSDP before expert, then ``dp_cp`` and other derived
        axes, then ``world``; an empty text when the ranks are no group of the plan's.
        """
        members = tuple(sorted(ranks))
        if not members or not 0 <= members[0] <= members[-1] < self.world_size:
            return ""
        for axis, view, places, size in self._nameable:
            if size == len(members) and view.group(places, members[0]) == members:
                return axis
        return "world" if len(members) == self.world_size else ""

    @cached_property
    def _nameable(self) -> tuple[tuple[str, View, tuple[int, ...], int], ...]:
        """Axes above size 1 with their place, in the order in which a group is named after them."""
        views = [v for name, v in self._views.items() if name != "expert" or self.dims.ep_size > 1]
        names = dict.fromkeys(axis for view in views for axis in view.axes)
        derived = ("dp_cp", "edp", "mp", "stage") if self.dims.ep_size > 1 else ("dp_cp", "mp", "stage")
        found = []
        for axis in (*names, *derived):
            view, places = self._places(axis)
            size = math.prod(view.shape[place] for place in places)
            if size > 1 and not (axis in derived and size == self.world_size):
                found.append((axis, view, places, size))
        return tuple(found)

    # Nodes

    def node(self, rank: int) -> int:
        """The number of the machine that holds a rank; needs ``node_size``."""
        return self._rank(rank) // self._node_size()

    def crosses_nodes(self, axes: str | Sequence[str]) -> bool:
        """Whether any group along the axes has ranks on several machines; needs ``node_size``."""
        node_size = self._node_size()
        view, places = self._places(axes)
        if node_size >= self.world_size or self.size(axes) == 1:
            return False
        if all(view.strides[place] is not None for place in places):
            span = max(view.shape[place] * (view.strides[place] or 1) for place in places)
            if node_size % span == 0:
                return False
        return any(
            view.first(places, rank) // node_size != view.last(places, rank) // node_size
            for rank in range(self.world_size)
        )

    def _node_size(self) -> int:
        if self.node_size is None:
            raise MeshError(
                "this plan has no node_size: build it with node_size=, the number of ranks of a machine"
            )
        return self.node_size

    # Text

    def describe(self) -> str:
        """A table of all views and axes, for people."""
        from meshlib.describe import describe

        return describe(self)

    def explain(self, rank: int) -> str:
        """Where one rank is, and whom it talks to along each axis."""
        from meshlib.describe import explain

        return explain(self, self._rank(rank))

    def diff(self, other: MeshPlan) -> str:
        """What differs between two plans, a line each; empty when they are equal."""
        from meshlib.describe import diff

        if not isinstance(other, MeshPlan):
            raise MeshError(f"a plan is compared with another MeshPlan, not with {other!r}")
        return diff(self, other)

    def __str__(self) -> str:
        return f"{self.topology} ({self.world_size} ranks)"

    # JSON, digest, pickle

    def to_json(self) -> dict[str, Any]:
        """A JSON-safe dictionary with ``schema_version``; :meth:`from_json` reads it."""
        return {**self._content(), "digest": self.digest}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> MeshPlan:
        """The plan that :meth:`to_json` wrote, from its dictionary or from JSON text of it."""
        from meshlib.plan_json import plan_from_json

        return plan_from_json(cls, data)

    def _content(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "world_size": self.world_size,
            "sizes": self.dims.sizes(),
            "order": list(self.order),
            "ep_scope": self.ep_scope,
            "views": {name: [list(part) for part in parts] for name, parts in self.custom_views},
            "node_size": self.node_size,
        }

    @cached_property
    def digest(self) -> str:
        """64 hex digits that are equal exactly when the plans are."""
        from hashlib import sha256

        text = json.dumps(self._content(), separators=(",", ":"))
        return sha256(text.encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.world_size, self.dims, self.order, self.ep_scope, self.custom_views, self.node_size)
        return type(self), fields

    # For the meshes of one stage

    @cached_property
    def _stage_plan(self) -> MeshPlan:
        """The plan of one stage on its own: ranks are places in the stage."""
        from dataclasses import replace

        if self.dims.pp_size == 1:
            return self
        return type(self)(
            self.world_size // self.dims.pp_size, replace(self.dims, pp_size=1), self.order, self.ep_scope
        )

    def _stage_view(self, view: str) -> View:
        return self._stage_plan._view(view)

    # Looking names up

    def _rank(self, rank: int) -> int:
        if type(rank) is int and 0 <= rank < self.world_size:
            return rank
        return checked_rank(rank, self.world_size)

    def _view(self, name: str) -> View:
        try:
            return self._views[name]
        except (KeyError, TypeError):
            raise UnknownAxis(f"unknown view {name!r}; this plan has {names_text(self._views)}") from None

    def _places(self, axes: str | Sequence[str]) -> tuple[View, tuple[int, ...]]:
        """The view that has all of these axes, and their places in it."""
        key = axes if isinstance(axes, str) else _axis_names(axes)
        found = built_in_places(key)
        return (self._views[found[0]], found[1]) if found else self._look_up(key)

    def _look_up(self, axes: str | tuple[str, ...]) -> tuple[View, tuple[int, ...]]:
        names = (axes,) if isinstance(axes, str) else axes
        if not names:
            raise MeshError(f"no axis is named; known are {names_text(self.known_axes)}")
        views = {name: view.axes for name, view in self._views.items()}
        spelled = {name: spellings(name, views) for name in names}
        unknown = [name for name in names if not spelled[name]]
        if unknown:
            listed = names_text(map(repr, unknown))
            hint = did_you_mean(unknown[0], self.known_axes)
            raise UnknownAxis(f"unknown axis {listed}{hint}; known are {names_text(self.known_axes)}")
        found = places_in(names, views)
        if found:
            return self._views[found[0]], found[1]
        if any(all(view in spelled[name] for name in names) for view in views):
            raise MeshError(f"the axes {names_text(names)} overlap: name each base axis once")
        homes = "; ".join(f"{name} is in {names_text(views)}" for name, views in spelled.items())
        raise MeshError(f"no view has all of {names_text(names)}: {homes}")

    @property
    def known_axes(self) -> tuple[str, ...]:
        """Every name that an axis goes by: base axes of all views, then derived ones."""
        base = [axis for view in self._views.values() for axis in view.axes]
        return tuple(dict.fromkeys([*base, *DERIVED_AXES]))

    def _checked_coordinate(self, name: str, view: View, coordinate: Mapping[str, int]) -> dict[str, int]:
        """Numbers by the view's own axis names."""
        checked: dict[str, int] = {}
        for axis, value in coordinate.items():
            base = base_axis(axis, view.axes)
            if base is None:
                homes = [other for other, of in self._views.items() if base_axis(axis, of.axes)]
                hint = f'; the {homes[0]} view has it: pass view="{homes[0]}"' if homes else ""
                several = spellings(axis, {name: view.axes}).get(name, ())
                if several:
                    hint = f"; it stands for {names_text(several)}: name these"
                raise MeshError(f"{axis} isn't in the {name} view, which has {names_text(view.axes)}{hint}")
            if base in checked:
                raise MeshError(f"{base} is given twice, by two of its names; name it once")
            size = view.shape[view.axes.index(base)]
            number = exact_int(value)
            if number is None or not 0 <= number < size:
                raise MeshError(
                    f"{axis}={value!r} is out of range: {axis} has size {size}, coordinates 0 to {size - 1}"
                )
            checked[base] = number
        return checked


def _axis_names(axes: Any) -> tuple[str, ...]:
    names = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    if not all(isinstance(name, str) for name in names):
        raise MeshError(f"axes must be a name or a tuple of names, such as ('dp', 'cp'), got {axes!r}")
    return names


def _checked_node_size(node_size: Any) -> int | None:
    if node_size is None:
        return None
    size = exact_int(node_size)
    if size is None or size < 1:
        raise TopologyError(f"node_size must be a whole number of at least 1, got {node_size!r}")
    return size
