"""The process groups of a rank's meshes, by the names that the plan has for them."""

from __future__ import annotations

import torch.distributed as dist

from meshlib import MeshContext


def groups_by_axis(mesh: MeshContext) -> dict[str, dist.ProcessGroup]:
    """Every axis of every mesh of this rank, axes of size 1 too, and ``world``."""
    groups: dict[str, dist.ProcessGroup] = {}
    meshes = (
        mesh.device_mesh,
        mesh.dp_cp_mesh,
        mesh.pp_mesh,
        mesh.fsdp_non_moe_mesh,
        mesh.fsdp_moe_mesh,
    )
    for one in meshes:
        if one is not None:
            for axis in one.mesh_dim_names:
                groups.setdefault(axis, one.get_group(axis))
    world = dist.group.WORLD
    assert world is not None
    return {**groups, "world": world}


def axes_by_group(mesh: MeshContext) -> list[tuple[tuple[str, ...], dist.ProcessGroup]]:
    """Every group of this rank once, with all axes that it serves: axes with the same ranks share one."""
    axes: dict[dist.ProcessGroup, list[str]] = {}
    for axis, group in groups_by_axis(mesh).items():
        axes.setdefault(group, []).append(axis)
    return [(tuple(names), group) for group, names in axes.items()]
