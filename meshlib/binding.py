"""Binding a plan to live meshes: agree, create the groups, make the meshes, verify them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1

import torch
import torch.distributed as dist

from meshlib.agreement import Round
from meshlib.device import set_device
from meshlib.errors import MeshError
from meshlib.grid import Grid, MeshAxis
from meshlib.groups import GroupOptions, Groups
from meshlib.live import LiveMesh, RankMap, make_live_mesh
from meshlib.plan import MeshPlan
from meshlib.rank_text import rank_list_text, ranks_text
from meshlib.stage_meshes import StageMesh, expert_axes, stage_mesh, stage_ranks
from meshlib.torch_private import default_group, group_timeout

_DENSE = ("dp", "cp", "tp")
_FSDP = ("fsdp_replicate", "fsdp_shard", "tp")


@dataclass
class Binding:
    """The live meshes of one context, and the groups that they stand on."""

    groups: Groups
    device_mesh: LiveMesh
    fsdp_non_moe_mesh: LiveMesh
    fsdp_moe_mesh: LiveMesh | None
    pp_mesh: LiveMesh


def world_round(device_type: str, timeout: timedelta | None) -> Round:
    """The agreement of all ranks of the world."""
    return Round(range(dist.get_world_size()), "world", _limit(device_type, timeout))


def _limit(device_type: str, timeout: timedelta | None) -> timedelta:
    """How long to wait for the other ranks: as long as their groups would."""
    return timeout or group_timeout(default_group(), torch.device(device_type)) or timedelta(minutes=30)


def bind(plan: MeshPlan, device_type: str, options: GroupOptions, timeout: timedelta | None) -> Binding:
    """Live meshes of a plan on the default process group. Every rank of the world calls it."""
    rank = dist.get_rank()
    agreed = world_round(device_type, timeout)
    agreed.agree(rank, {**plan._content(), "device_type": device_type})
    groups = Groups(agreed.name, options, device_type)
    set_device(device_type)
    try:
        return _make_meshes(plan, device_type, groups, rank)
    except BaseException:
        groups.close()
        raise


def group_axes(plan: MeshPlan) -> tuple[str, ...]:
    """The axes that a binding makes groups for, in the order in which every rank makes them."""
    axes = ("pp", *_DENSE, "fsdp_replicate", "fsdp_shard", "dp_cp")
    return axes if plan.dims.ep_size == 1 else (*axes, "edp_replicate", "edp_shard", "ep")


def _make_meshes(plan: MeshPlan, device_type: str, groups: Groups, rank: int) -> Binding:
    # One axis after the other: the groups of an axis don't share ranks, so no two ranks can wait for each
    # other.
    ranks = {axis: plan.group(axis, rank) for axis in group_axes(plan)}
    made = {axis: groups.get(axis, members) for axis, members in ranks.items()}
    stage = RankMap.of(stage_ranks(plan, rank))

    def mesh(part: StageMesh) -> LiveMesh:
        live = make_live_mesh(
            part.grid,
            part.axes,
            groups=groups,
            device_type=device_type,
            coordinate=part.coordinate,
            own=tuple([made[axis] for axis in part.axes]),
            # Meshes of one rank map can be combined by torch: FSDP over tensor parallel parameters.
            rank_map=stage if part.grid.ranks == stage.ranks else None,
        )
        _verify(live, ranks, made, rank)
        return live

    device_mesh = mesh(stage_mesh(plan, "dense", _DENSE, rank, stage.ranks))
    device_mesh["dp", "cp"].flatten("dp_cp")
    pp = StageMesh(("pp",), Grid(ranks["pp"], (len(ranks["pp"]),)), (ranks["pp"].index(rank),))
    moe = (
        mesh(stage_mesh(plan, "expert", expert_axes(plan), rank, stage.ranks))
        if plan.dims.ep_size > 1
        else None
    )
    return Binding(
        groups=groups,
        device_mesh=device_mesh,
        fsdp_non_moe_mesh=mesh(stage_mesh(plan, "fsdp", _FSDP, rank, stage.ranks)),
        fsdp_moe_mesh=moe,
        pp_mesh=mesh(pp),
    )


def _verify(
    mesh: LiveMesh,
    ranks: Mapping[str, tuple[int, ...]],
    groups: Mapping[str, dist.ProcessGroup],
    rank: int,
) -> None:
    """Each axis's group, coordinate and local rank against the plan; the groups' ranks were compared
    when made.
    """
    coordinate = mesh.get_coordinate() or ()
    for place, axis in enumerate(mesh.mesh_dim_names or ()):
        group, local = mesh.get_group(place), mesh.get_local_rank(place)
        expected = ranks[axis].index(rank)
        if group is not groups[axis] or not expected == local == coordinate[place] == group.rank():
            held = rank_list_text(dist.get_process_group_ranks(group))
            raise MeshError(
                f"rank {rank}: the {axis} axis of the mesh has the ranks {held}, "
                f"coordinate {coordinate[place]} and local rank {local}; "
                f"the plan has {rank_list_text(ranks[axis])} and {expected}"
            )


def bind_ranks(
    grid: Grid,
    names: tuple[str, ...] | None,
    device_type: str,
    options: GroupOptions,
    timeout: timedelta | None,
) -> LiveMesh:
    """A live mesh of any ranks. All members call it; others may, and only learn that they aren't members."""
    rank = dist.get_rank()
    titles = names or tuple(str(dim) for dim in range(len(grid.shape)))
    if rank not in grid:
        outside = Groups("", options, device_type)
        return make_live_mesh(grid, names, groups=outside, device_type=device_type, coordinate=None, own=())
    members = sorted(grid.ranks)
    topic = "world" if len(members) == dist.get_world_size() else _topic(members)
    agreed = Round(members, topic, _limit(device_type, timeout))
    agreed.agree(
        rank,
        {"shape": grid.shape, "names": names, "rank_list": _listed(grid.ranks), "device_type": device_type},
    )
    groups = Groups(agreed.name, options, device_type)
    set_device(device_type)
    coordinate = grid.coordinate(rank)
    axes = [MeshAxis(title, (dim,)) for dim, title in enumerate(titles)]
    own = tuple(groups.get(axis.name, grid.ranks_along((axis,), coordinate)) for axis in axes)
    return make_live_mesh(grid, names, groups=groups, device_type=device_type, coordinate=coordinate, own=own)


def _topic(members: Sequence[int]) -> str:
    return sha1("_".join(map(str, members)).encode(), usedforsecurity=False).hexdigest()


def _listed(ranks: Sequence[int]) -> str:
    return f"{ranks.start} to {ranks.stop - 1}" if isinstance(ranks, range) else ranks_text(ranks)
