"""``init_device_mesh``: a mesh of any ranks, live or offline."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from meshlib.errors import MeshError, TopologyError
from meshlib.grid import Grid
from meshlib.offline import OfflineMesh, mesh_on_grid
from meshlib.process_group import has_process_group
from meshlib.shapes import check_covers_world, checked_names, checked_rank_list, checked_shape
from meshlib.timeouts import as_timedelta

if TYPE_CHECKING:
    from meshlib.live import LiveMesh


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    rank_list: Sequence[int] | None = None,
    init_backend: bool = True,
    timeout: timedelta | float | None = None,
    options: Any = None,
) -> LiveMesh | OfflineMesh:
    """A mesh of ``mesh_shape`` over all ranks, or over those of ``rank_list`` in its order, row-major.

    With a process group it is a live torch ``DeviceMesh``, made by all its members at the same time; a rank
    that isn't a member may make it too and gets a mesh that says so. With ``init_backend=False``, or where
    there is no process group, it is an ``OfflineMesh``: nothing is started, no environment variable is
    needed. Without ``rank_list`` the shape has to cover the world: the process group's, or ``WORLD_SIZE``
    where a launcher has set it.

    ``timeout`` (a timedelta or seconds) and ``options`` hold for each of its groups, as in
    ``MeshContext.build_meshes``. Shapes, names and ranks that make no mesh are a ``TopologyError``; members
    that bring different shapes or names all get a ``PlanDisagreement``.
    """
    if not isinstance(device_type, str) or not device_type.isalpha():
        raise MeshError(
            f"device_type must be a type without an index, such as 'cpu' or 'cuda', got {device_type!r}"
        )
    if not (init_backend and has_process_group()):
        as_timedelta(timeout)
    if not has_process_group():
        launched = _launched_world() if rank_list is None else None
        source = "" if launched is None else _source(launched)
        return _offline(mesh_shape, mesh_dim_names, rank_list, launched, source)
    import torch.distributed as dist

    world_size = dist.get_world_size()
    if not init_backend:
        mesh = _offline(mesh_shape, mesh_dim_names, rank_list, world_size, _source(world_size))
        return mesh.at(dist.get_rank())
    return _live(device_type, mesh_shape, mesh_dim_names, rank_list, timeout, options)


def _checked(
    mesh_shape: Any, mesh_dim_names: Any, rank_list: Any, world_size: int | None, source: str
) -> tuple[tuple[int, ...], tuple[str, ...] | None, Sequence[int]]:
    shape = checked_shape(mesh_shape)
    names = None if mesh_dim_names is None else checked_names(mesh_dim_names, len(shape))
    if rank_list is not None:
        return shape, names, checked_rank_list(rank_list, shape, world_size, source)
    if world_size is not None:
        check_covers_world(shape, world_size, source)
    return shape, names, range(math.prod(shape))


def _launched_world() -> int | None:
    """The world size in the environment, where there is one."""
    text = os.environ.get("WORLD_SIZE", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise TopologyError(
            f"WORLD_SIZE={text!r} in the environment must be a whole number of at least 1; set it right, "
            "unset it, or give rank_list="
        )
    return int(text)


def _source(world_size: int) -> str:
    """What set the world size."""
    launcher = (
        "torchrun in the environment" if "TORCHELASTIC_RUN_ID" in os.environ else "the launcher's environment"
    )
    if os.environ.get("WORLD_SIZE", "").strip() == str(world_size):
        return f"world size {world_size}, set by {launcher}: WORLD_SIZE={world_size}"
    return f"world size {world_size}, set by the argument of init_process_group"


def _offline(shape: Any, names: Any, rank_list: Any, world_size: int | None, source: str) -> OfflineMesh:
    checked, titles, ranks = _checked(shape, names, rank_list, world_size, source)
    return mesh_on_grid(titles, Grid(ranks, checked))


def _live(
    device_type: str, mesh_shape: Any, mesh_dim_names: Any, rank_list: Any, timeout: Any, options: Any
) -> LiveMesh:
    import torch.distributed as dist

    from meshlib.binding import bind_ranks, world_round
    from meshlib.groups import GroupOptions

    world_size = dist.get_world_size()
    try:
        shape, names, ranks = _checked(mesh_shape, mesh_dim_names, rank_list, world_size, _source(world_size))
        titles = names or tuple(str(dim) for dim in range(len(shape)))
        settings = GroupOptions(timeout, options, titles)
    except MeshError as error:
        if rank_list is None:
            # The others are about to wait for this rank. With a rank list nobody knows who they are.
            world_round(device_type, None).refuse(dist.get_rank(), str(error))
        raise
    return bind_ranks(Grid(ranks, shape), names, device_type, settings, as_timedelta(timeout))
