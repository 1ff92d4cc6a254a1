"""Meshes without process groups: names, shapes, slices, coordinates and groups for any rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from meshlib.dims import ParallelDims
from meshlib.errors import MeshError, TopologyError
from meshlib.grid import Grid, MeshAxis
from meshlib.integers import exact_int
from meshlib.process_group import has_process_group
from meshlib.rank_text import names_text, rank_list_text
from meshlib.shapes import checked_names, checked_shape
from meshlib.slicing import Axes, axis_at, flat_axis, grouped, select


@dataclass(frozen=True, eq=False)
class OfflineMesh:
    """A static stand-in for a device mesh: frozen, made of plain values, without a process group.

    A plain mesh holds ranks 0, 1, 2, ... row-major over ``mesh_shape``. A slice still knows the mesh that
    it was cut from: it answers for any rank of it, and its ``rank_list`` is the part that the bound rank
    sees (rank 0, or the mesh's first rank, when none is bound).

    A shape that makes no mesh, or names that don't match it, is a ``TopologyError`` (a ``ValueError``).
    """

    mesh_dim_names: tuple[str, ...] | None
    mesh_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = checked_shape(self.mesh_shape)
        names = None if self.mesh_dim_names is None else checked_names(self.mesh_dim_names, len(shape))
        axes = None if names is None else tuple(MeshAxis(name, (dim,)) for dim, name in enumerate(names))
        self._set(Grid(range(math.prod(shape)), shape), axes, axes or (), {}, None)

    def _set(
        self, grid: Grid, axes: Axes | None, root_axes: Axes, flat: dict[str, MeshAxis], rank: int | None
    ) -> None:
        values = {
            "_grid": grid,
            "_axes": axes,
            "_root_axes": root_axes,
            "_flat": flat,
            "_rank": rank,
            "mesh_dim_names": None if axes is None else tuple(axis.name for axis in axes),
            "mesh_shape": grid.shape if axes is None else tuple(grid.size(axis) for axis in axes),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _derived(self, axes: Axes | None, rank: int | None) -> OfflineMesh:
        """The same ranks seen along other axes, or from another rank. Flat axes are shared."""
        mesh = object.__new__(OfflineMesh)
        mesh._set(self._grid, axes, self._root_axes, self._flat, rank)
        return mesh

    # Shape

    @property
    def ndim(self) -> int:
        return len(self.mesh_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mesh_shape

    def size(self, mesh_dim: int | str | None = None) -> int:
        """The number of ranks, or that along one axis."""
        if mesh_dim is None:
            return math.prod(self.mesh_shape)
        return self._grid.size(self._axis(mesh_dim))

    @property
    def rank_list(self) -> tuple[int, ...]:
        """The mesh's ranks, row-major."""
        return self._grid.ranks_along(self._all_axes(), self._viewpoint())

    # Ranks and coordinates

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """A rank's coordinate, one number an axis. ``NotInMesh`` for a rank outside of the mesh."""
        place = self._grid.coordinate(self._member(rank))
        return tuple(self._grid.local_rank(axis, place) for axis in self._all_axes())

    def group(self, axes: int | str | Sequence[int | str], rank: int) -> tuple[int, ...]:
        """Ascending ranks that share ``rank``'s group along one axis or several, by name or number, in any
        order.
        """
        along = grouped(self._axes, self.ndim, self._flat, axes)
        return tuple(sorted(self._grid.ranks_along(along, self._grid.coordinate(self._member(rank)))))

    def groups(self, axes: int | str | Sequence[int | str]) -> tuple[tuple[int, ...], ...]:
        """All groups along one axis or several, by name or number, by their lowest rank."""
        along = grouped(self._axes, self.ndim, self._flat, axes)
        firsts = self._grid.first_coordinates(along)
        return tuple(sorted(tuple(sorted(self._grid.ranks_along(along, first))) for first in firsts))

    # Slices

    def __getitem__(self, names: str | tuple[str, ...]) -> OfflineMesh:
        """The mesh along some of the axes, in the mesh's order; all of them: the mesh itself."""
        axes = select(self._axes, self._flat, names)
        return self if axes == self._axes else self._derived(axes, self._rank)

    def flatten(self, name: str | None = None) -> OfflineMesh:
        """The 1-D mesh of all axes together. Afterwards the mesh that it was cut from knows the name too."""
        axis = flat_axis(self._axes, self._root_axes, self._flat, name)
        if self._axes == (axis,):
            return self
        if all(axis.name != known.name for known in self._root_axes):
            self._flat.setdefault(axis.name, axis)
        return self._derived((axis,), self._rank)

    # One rank

    def at(self, rank: int) -> OfflineMesh:
        """The mesh as ``rank`` sees it: its slices, coordinate and local ranks."""
        number = exact_int(rank)
        if number is None or number < 0:
            raise MeshError(f"rank must be a whole number of at least 0, got {rank!r}")
        return self._derived(self._axes, number)

    def get_rank(self) -> int:
        """The bound rank."""
        if self._rank is None:
            raise MeshError("no rank is bound: use mesh.at(rank)")
        return self._rank

    def get_coordinate(self) -> tuple[int, ...] | None:
        """The bound rank's coordinate; None when it isn't in the mesh."""
        rank = self.get_rank()
        return self.coordinate(rank) if rank in self._grid else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The bound rank's place along an axis, by name or number. ``NotInMesh`` when it isn't in the
        mesh.
        """
        axis = self._axis(mesh_dim)
        return self._grid.local_rank(axis, self._grid.coordinate(self.get_rank()))

    def get_group(self, mesh_dim: int | str | None = None) -> NoReturn:
        """Always an error: an offline mesh has no process groups."""
        self._axis(mesh_dim)
        start = "" if has_process_group() else "call torch.distributed.init_process_group() first, then "
        raise MeshError(
            f"an offline mesh has no process group: {start}build the mesh with init_backend=True "
            "(build_mesh_context: offline=False)"
        )

    def get_all_groups(self) -> NoReturn:
        """Always an error: an offline mesh has no process groups."""
        self.get_group(0)

    # Plumbing

    # Set in each instance, and no fields: asdict() gives names and shape only.
    _grid: ClassVar[Grid]
    _axes: ClassVar[Axes | None]
    _root_axes: ClassVar[Axes]
    _flat: ClassVar[dict[str, MeshAxis]]
    _rank: ClassVar[int | None]

    def _all_axes(self) -> Axes:
        if self._axes is not None:
            return self._axes
        return tuple(MeshAxis(str(dim), (dim,)) for dim in range(len(self._grid.shape)))

    def _axis(self, mesh_dim: int | str | None) -> MeshAxis:
        found = axis_at(self._axes, self.ndim, self._flat, mesh_dim)
        return found if isinstance(found, MeshAxis) else self._all_axes()[found]

    def _member(self, rank: int) -> int:
        number = exact_int(rank)
        if number is None:
            raise MeshError(f"rank must be a whole number, got {rank!r}")
        return number

    def _viewpoint(self) -> tuple[int, ...]:
        if self._rank is None or (self._rank not in self._grid and self._axes == (self._root_axes or None)):
            return (0,) * len(self._grid.shape)
        return self._grid.coordinate(self._rank)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OfflineMesh):
            return NotImplemented
        return self is other or (
            (self.mesh_dim_names, self.mesh_shape, self._rank)
            == (other.mesh_dim_names, other.mesh_shape, other._rank)
            and self.rank_list == other.rank_list
        )

    def __hash__(self) -> int:
        return hash((self.mesh_dim_names, self.mesh_shape, self._rank))

    def __repr__(self) -> str:
        sizes = self.mesh_shape
        text = str(sizes) if self.mesh_dim_names is None else _sized(self.mesh_dim_names, sizes)
        ranks = (
            "" if self.rank_list == tuple(range(self.size())) else f", ranks {rank_list_text(self.rank_list)}"
        )
        return f"OfflineMesh({text}{ranks}{'' if self._rank is None else f', at rank {self._rank}'})"


def _sized(names: Sequence[str], sizes: Sequence[int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def mesh_on_grid(
    names: tuple[str, ...] | None,
    grid: Grid,
    *,
    rank: int | None = None,
    flat: Mapping[str, tuple[int, ...]] = {},
) -> OfflineMesh:
    """An offline mesh with ranks of one's own. ``flat`` names flattened axes by the grid's dimensions."""
    axes = None if names is None else tuple(MeshAxis(name, (dim,)) for dim, name in enumerate(names))
    mesh = object.__new__(OfflineMesh)
    mesh._set(grid, axes, axes or (), {name: MeshAxis(name, dims) for name, dims in flat.items()}, rank)
    return mesh


def build_offline_mesh(parallel_dims: Any) -> OfflineMesh:
    """The mesh that planners see, from anything with ``dp_size, cp_size, tp_size, pp_size`` (or a mapping
    of them).

    ``dp``, ``cp`` and ``tp`` are always axes, also at size 1; ``pp`` is one only above size 1, and listed
    last; ``ep`` never is. Coordinates and groups are those of the plan, where ``pp`` is outermost in rank
    order.
    """
    sizes = _dense_sizes(parallel_dims)
    names, shape = ["dp", "cp", "tp"], [sizes["dp"], sizes["cp"], sizes["tp"]]
    strides = [sizes["cp"] * sizes["tp"], sizes["tp"], 1]
    if sizes["pp"] > 1:
        names.append("pp")
        shape.append(sizes["pp"])
        strides.append(math.prod(shape[:3]))
    return mesh_on_grid(tuple(names), Grid(range(math.prod(shape)), tuple(shape), tuple(strides)))


def _dense_sizes(source: Any) -> dict[str, int]:
    if isinstance(source, ParallelDims):
        requested = source
    else:
        wanted = [f"{axis}_size" for axis in ("dp", "cp", "tp", "pp")]
        held = (
            source
            if isinstance(source, Mapping)
            else {n: getattr(source, n) for n in wanted if hasattr(source, n)}
        )
        missing = [name for name in wanted if name not in held]
        if missing:
            kind = type(source).__name__
            raise TopologyError(
                f"an offline mesh needs {names_text(wanted)}; {kind} has no {names_text(missing)}"
            )
        values = {name: held[name] for name in wanted}
        requested = ParallelDims(**values)
    resolved = requested.resolve(requested.own_world_size())
    return {axis: size or 1 for axis, size in resolved.sizes().items()}
