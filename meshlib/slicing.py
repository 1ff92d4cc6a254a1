"""Which slices and flat axes of a mesh are legal: one set of rules for offline and live meshes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshlib.errors import MeshError, UnknownAxis
from meshlib.grid import MeshAxis
from meshlib.integers import exact_int
from meshlib.rank_text import names_text

Axes = tuple[MeshAxis, ...]


def named(axes: Axes | None) -> Axes:
    """The axes of a mesh that has names."""
    if axes is None:
        raise MeshError(
            "this mesh has no axis names: give mesh_dim_names= when it is made, to slice or flatten by name"
        )
    return axes


def usable_flat_axes(axes: Axes, flat: Mapping[str, MeshAxis]) -> dict[str, MeshAxis]:
    """The flattened axes that lie inside of these axes."""
    own = {axis.name for axis in axes}
    inside = {dim for axis in axes for dim in axis.dims}
    return {name: axis for name, axis in flat.items() if name not in own and set(axis.dims) <= inside}


def select(axes: Axes | None, flat: Mapping[str, MeshAxis], names: Any) -> Axes:
    """The axes that a slice names, in the mesh's order, without overlap."""
    own = named(axes)
    wanted = (names,) if isinstance(names, str) else names
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise MeshError(f"slice a mesh by axis names, such as mesh['{own[0].name}'], not by {names!r}")
    if not wanted:
        raise MeshError(
            f"a slice needs at least one axis name; this mesh has {names_text(a.name for a in own)}"
        )
    known = {**{axis.name: axis for axis in own}, **usable_flat_axes(own, flat)}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UnknownAxis(
            f"this mesh has no axis {names_text(map(repr, unknown))}; it has {names_text(known)}"
        )
    chosen = tuple(known[name] for name in wanted)
    _check_overlap(chosen)
    _check_order(chosen)
    return chosen


def grouped(axes: Axes | None, ndim: int, flat: Mapping[str, MeshAxis], wanted: Any) -> Axes:
    """The axes of a group, by name or number, in any order: a group's ranks are a set."""
    one = isinstance(wanted, str) or exact_int(wanted) is not None
    parts = (wanted,) if one else wanted
    if not isinstance(parts, Sequence) or not parts or any(part is None for part in parts):
        raise MeshError(f"a group is along axes, by name or number, {_listed(axes, ndim)}; got {wanted!r}")
    own = axes or tuple(MeshAxis(str(dim), (dim,)) for dim in range(ndim))
    found = [axis_at(axes, ndim, flat, part) for part in parts]
    chosen = tuple(own[axis] if isinstance(axis, int) else axis for axis in found)
    _check_overlap(chosen)
    return chosen


def _check_overlap(axes: Sequence[MeshAxis]) -> None:
    seen: dict[int, str] = {}
    for axis in axes:
        for dim in axis.dims:
            if dim in seen:
                names = tuple(a.name for a in axes)
                raise MeshError(f"the axes {names} overlap: {seen[dim]!r} and {axis.name!r} share ranks")
            seen[dim] = axis.name


def _check_order(axes: Sequence[MeshAxis]) -> None:
    dims = [dim for axis in axes for dim in axis.dims]
    if dims == sorted(dims):
        return
    ordered = sorted(axes, key=lambda axis: axis.dims)
    names = tuple(axis.name for axis in axes)
    in_order = [dim for axis in ordered for dim in axis.dims]
    if in_order == sorted(in_order):
        right = ", ".join(f'"{axis.name}"' for axis in ordered)
        raise MeshError(f"slice {names} isn't in the mesh's order; write mesh[{right}]")
    raise MeshError(
        f"slice {names} interleaves: no order of these axes is the mesh's; slice the flat axis on its own"
    )


def flat_axis(
    axes: Axes | None, root: Iterable[MeshAxis], flat: Mapping[str, MeshAxis], name: str | None
) -> MeshAxis:
    """The axis that flattening ``axes`` gives; an error when the name means something else already."""
    own = named(axes)
    if name is not None and (not isinstance(name, str) or not name):
        raise MeshError(f"the flat axis's name must be text, such as 'dp_cp', got {name!r}")
    title = name or "_".join(axis.name for axis in own)
    dims = tuple(dim for axis in own for dim in axis.dims)
    if len(own) == 1 and own[0].name == title:
        return own[0]
    taken = {axis.name for axis in (*root, *own)}
    if title in taken:
        raise MeshError(
            f"can't flatten {names_text(a.name for a in own)} to {title!r}: the mesh has an axis of that name"
        )
    if title in flat and flat[title].dims != dims:
        raise MeshError(
            f"can't flatten {names_text(a.name for a in own)} to {title!r}: "
            "other axes were flattened to that name; choose another"
        )
    return MeshAxis(title, dims)


def axis_at(axes: Axes | None, ndim: int, flat: Mapping[str, MeshAxis], dim: Any) -> int | MeshAxis:
    """The index of an axis that is given by name or number, or the flat axis of that name.

    On meshes of one axis it need not be given.
    """
    if type(dim) is int and 0 <= dim < ndim:
        return dim
    if dim is None:
        if ndim == 1:
            return 0
        raise MeshError(f"this mesh has {ndim} axes: say which one, {_listed(axes, ndim)}")
    if isinstance(dim, str):
        own = named(axes)
        for index, axis in enumerate(own):
            if axis.name == dim:
                return index
        usable = usable_flat_axes(own, flat)
        if dim in usable:
            return usable[dim]
        known = names_text([*(axis.name for axis in own), *usable])
        raise UnknownAxis(f"this mesh has no axis {dim!r}; it has {known}")
    number = exact_int(dim)
    if number is None or not -ndim <= number < ndim:
        raise UnknownAxis(f"this mesh has no axis {dim!r}; it has {ndim}: {_listed(axes, ndim)}")
    return number % ndim


def _listed(axes: Axes | None, ndim: int) -> str:
    return names_text(axis.name for axis in axes) if axes else f"0 to {ndim - 1}"
