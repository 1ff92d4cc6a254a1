"""Live meshes: torch's own ``DeviceMesh`` on process groups that were made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshlib.errors import MeshError, NotInMesh
from meshlib.grid import Grid, MeshAxis
from meshlib.groups import Groups
from meshlib.rank_text import rank_list_text
from meshlib.slicing import Axes, axis_at, flat_axis, select
from meshlib.torch_private import fill_device_mesh, mesh_layout


@dataclass(frozen=True)
class RankMap:
    """The ranks of a mesh, in the forms that torch holds them in. Meshes of the same ranks share one."""

    ranks: Sequence[int]
    flat: tuple[int, ...]
    tensor: torch.Tensor

    @classmethod
    def of(cls, ranks: Sequence[int]) -> RankMap:
        # On the CPU, whatever the default device is.
        with torch.device("cpu"):
            if isinstance(ranks, range):
                tensor = torch.arange(ranks.start, ranks.stop, dtype=torch.int)
            else:
                tensor = torch.tensor(ranks, dtype=torch.int)
        return cls(ranks, tuple(ranks), tensor)


@dataclass
class Root:
    """What the slices of one mesh share: its ranks and groups, and the axes that were flattened."""

    grid: Grid
    groups: Groups
    device_type: str
    coordinate: tuple[int, ...] | None
    """This rank's, on the grid; None when it isn't a member."""
    rank_map: RankMap
    axes: Axes = ()
    mesh: LiveMesh | None = None
    """The mesh that all slices were cut from."""
    flat: dict[str, MeshAxis] = field(default_factory=dict)
    meshes: dict[Any, LiveMesh] = field(default_factory=dict)
    """By axes: the same slice is the same object."""


class LiveMesh(DeviceMesh):
    """A torch ``DeviceMesh`` that also answers ``mesh_shape``, ``rank_list`` and ``flatten(name)``.

    Slices and flat axes follow the same rules as those of ``OfflineMesh``. Its groups were made before it;
    only ``flatten`` of axes that were never flattened makes one. A rank outside of the mesh has
    ``get_coordinate()`` None, and gets ``NotInMesh`` when it asks for a group or a local rank.
    """

    # Not pickled: a mesh that was pickled answers what torch's own answers.
    _root: Root | None = None
    _axes: Axes | None = None
    _own_groups: tuple[dist.ProcessGroup, ...] = ()

    def __init__(self, root: Root, axes: Axes | None, groups: tuple[dist.ProcessGroup, ...]) -> None:
        grid = root.grid
        shown = (
            axes if axes is not None else tuple(MeshAxis(str(dim), (dim,)) for dim in range(len(grid.shape)))
        )
        self._root, self._axes, self._own_groups = root, axes, groups
        self._shown = shown
        fill_device_mesh(
            self,
            device_type=root.device_type,
            layout=mesh_layout(
                tuple(
                    [
                        (
                            tuple([grid.shape[dim] for dim in axis.dims]),
                            tuple([grid.strides[dim] for dim in axis.dims]),
                        )
                        for axis in shown
                    ]
                )
            ),
            rank_map=root.rank_map.tensor,
            flat_rank_map=root.rank_map.flat,
            names=None if axes is None else tuple(axis.name for axis in axes),
            root=root.mesh,
            groups=groups,
            rank=root.groups.rank,
            thread=root.groups.thread,
            coordinate=None
            if root.coordinate is None
            else tuple([grid.local_rank(axis, root.coordinate) for axis in shown]),
        )

    # Shape

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.shape)

    def size(self, mesh_dim: int | str | None = None) -> int:
        """The number of ranks, or that along one axis, by name or number."""
        if self._root is None or mesh_dim is None:
            return int(super().size(mesh_dim))  # type: ignore[arg-type]
        found = axis_at(self._axes, self.ndim, self._root.flat, mesh_dim)
        return self._root.grid.size(found if isinstance(found, MeshAxis) else self._shown[found])

    @property
    def rank_list(self) -> tuple[int, ...]:
        """The mesh's ranks, row-major."""
        if self._root is None:
            return tuple(self.mesh.flatten().tolist())
        return self._root.grid.ranks_along(self._shown, self._viewpoint())

    def _viewpoint(self) -> tuple[int, ...]:
        root = self._bound()
        if root.coordinate is not None:
            return root.coordinate
        if sum(len(axis.dims) for axis in self._shown) == len(root.grid.shape):
            return (0,) * len(root.grid.shape)
        raise self._outside()

    # Ranks, coordinates and groups of any rank, as an offline mesh answers them

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Any rank's coordinate, one number an axis. ``NotInMesh`` for a rank outside of the mesh."""
        grid = self._bound().grid
        place = grid.coordinate(rank)
        return tuple(grid.local_rank(axis, place) for axis in self._shown)

    def group(self, axes: str | Sequence[str], rank: int) -> tuple[int, ...]:
        """Ascending ranks that share ``rank``'s group along one axis or several."""
        root = self._bound()
        along = select(self._axes, root.flat, axes)
        return tuple(sorted(root.grid.ranks_along(along, root.grid.coordinate(rank))))

    def groups(self, axes: str | Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """All groups along one axis or several, by their lowest rank."""
        root = self._bound()
        along = select(self._axes, root.flat, axes)
        firsts = root.grid.first_coordinates(along)
        return tuple(sorted(tuple(sorted(root.grid.ranks_along(along, first))) for first in firsts))

    # Slices

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> LiveMesh:
        """The mesh along some of the axes, in the mesh's order; all of them: the mesh itself."""
        root = self._bound()
        axes = select(self._axes, root.flat, mesh_dim_names)
        return self if axes == self._axes else self._along(axes)

    def _along(self, axes: Axes) -> LiveMesh:
        root = self._bound()
        found = root.meshes.get(axes)
        if found is None:
            groups = () if root.coordinate is None else tuple(self._group_along(axis) for axis in axes)
            found = root.meshes[axes] = LiveMesh(root, axes, groups)
        return found

    def _group_along(self, axis: MeshAxis) -> dist.ProcessGroup:
        root = self._bound()
        if root.coordinate is None:
            raise self._outside()
        return root.groups.get(axis.name, root.grid.ranks_along((axis,), root.coordinate))

    def flatten(self, name: str | None = None) -> LiveMesh:
        """The 1-D mesh of all axes together, named after them by default.

        Makes the group where no axis has had the same ranks before: then all members must call it.
        Afterwards the mesh that this one was cut from knows the name too.
        """
        root = self._bound()
        axis = flat_axis(self._axes, root.axes, root.flat, name)
        if self._axes == (axis,):
            return self
        mesh = self._along((axis,))
        if axis.name not in root.flat:
            root.flat[axis.name] = axis
            self._get_root_mesh()._flatten_mapping[axis.name] = mesh
        return mesh

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any = None) -> DeviceMesh:
        if self._root is None or backend_override is not None:
            return super()._flatten(mesh_dim_name, backend_override)
        return self.flatten(mesh_dim_name)

    # This rank

    def get_group(self, mesh_dim: int | str | None = None) -> dist.ProcessGroup:
        """The process group along an axis, by name or number. ``NotInMesh`` for a rank outside of the
        mesh.
        """
        if self._root is None:
            return super().get_group(mesh_dim)
        found = axis_at(self._axes, self.ndim, self._root.flat, mesh_dim)
        if self._root.coordinate is None:
            raise self._outside()
        if self._root.groups.closed:
            raise MeshError("this mesh is closed: its context has torn its process groups down")
        if isinstance(found, MeshAxis):
            return self._along((found,))._own_groups[0]
        return self._own_groups[found]

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's place along an axis, by name or number. ``NotInMesh`` for a rank outside of the
        mesh.
        """
        if self._root is None:
            return int(super().get_local_rank(mesh_dim))
        found = axis_at(self._axes, self.ndim, self._root.flat, mesh_dim)
        if self._root.coordinate is None:
            raise self._outside()
        axis = found if isinstance(found, MeshAxis) else self._shown[found]
        return self._root.grid.local_rank(axis, self._root.coordinate)

    def _outside(self) -> NotInMesh:
        root = self._bound()
        return NotInMesh(
            f"rank {root.groups.rank} isn't in the mesh of ranks {rank_list_text(root.grid.ranks)}"
        )

    def _bound(self) -> Root:
        if self._root is None:
            raise MeshError("this mesh was pickled: slice or flatten the mesh that it was made from")
        return self._root

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_root", "_axes", "_own_groups", "_shown"):
            state.pop(name, None)
        return state


torch.serialization.add_safe_globals([LiveMesh])


def make_live_mesh(
    grid: Grid,
    names: tuple[str, ...] | None,
    *,
    groups: Groups,
    device_type: str,
    coordinate: tuple[int, ...] | None,
    own: tuple[dist.ProcessGroup, ...],
    rank_map: RankMap | None = None,
) -> LiveMesh:
    """A mesh of its own. ``own`` are this rank's groups, one an axis; ``rank_map`` is that of the grid's
    ranks, where there is one already.
    """
    axes = None if names is None else tuple([MeshAxis(name, (dim,)) for dim, name in enumerate(names)])
    root = Root(grid, groups, device_type, coordinate, rank_map or RankMap.of(grid.ranks), axes or ())
    root.mesh = LiveMesh(root, axes, own)
    if axes is not None:
        root.meshes[axes] = root.mesh
    return root.mesh
