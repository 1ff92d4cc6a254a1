"""The scenario ``mesh_facts``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_equal
from meshsim.scenarios.mesh_axes import groups_by_axis
from meshsim.scenarios.parameters import mistake


def mesh_facts(ctx: RankContext) -> dict[str, list[int]]:
    """Every rank's place and group on every mesh axis are those of the plan.

    Along each axis the members of the live group gather their ranks, and the plan, which is arithmetic
    without communication, must give the same ones in the same order. Returns the groups by axis.

    Parameter ``break``: ``crossed_axes`` takes the group of tp for that of dp.
    """
    crossed = mistake(ctx.params, "crossed_axes") == "crossed_axes"
    plan, groups = ctx.mesh.plan, groups_by_axis(ctx.mesh)
    if crossed:
        groups["dp"] = groups["tp"]
    members = {}
    for axis, group in groups.items():
        members[axis] = _gathered_ranks(ctx, group)
        expected = list(plan.group(axis, ctx.rank))
        expect_equal(ctx, f"ranks of the {axis} group", expected, members[axis])
        expect_equal(ctx, f"own place in the {axis} group", expected.index(ctx.rank), dist.get_rank(group))
    _check_sizes(ctx)
    _check_coordinates(ctx)
    return members


def _gathered_ranks(ctx: RankContext, group: dist.ProcessGroup) -> list[int]:
    gathered = torch.empty(group.size(), dtype=torch.int64, device=ctx.device)
    dist.all_gather_single(gathered, torch.tensor([ctx.rank], device=ctx.device), group=group)
    return [int(rank) for rank in gathered.tolist()]


def _check_sizes(ctx: RankContext) -> None:
    mesh = ctx.mesh
    expect_equal(ctx, "dp x cp x tp x pp", ctx.world_size, mesh.device_mesh.size() * mesh.pp_size)
    expect_equal(ctx, "ranks of the FSDP mesh", mesh.device_mesh.size(), mesh.fsdp_non_moe_mesh.size())
    if mesh.fsdp_moe_mesh is not None:
        expect_equal(ctx, "ranks of the expert mesh", mesh.device_mesh.size(), mesh.fsdp_moe_mesh.size())


def _check_coordinates(ctx: RankContext) -> None:
    """All ranks' coordinates are different, and each is the plan's."""
    mesh, plan = ctx.mesh, ctx.mesh.plan
    own = torch.tensor([mesh.pp_rank, mesh.dp_rank, mesh.cp_rank, mesh.tp_rank], device=ctx.device)
    gathered = torch.empty(ctx.world_size * 4, dtype=own.dtype, device=ctx.device)
    dist.all_gather_single(gathered, own)
    rows = gathered.view(-1, 4).tolist()
    for rank, row in enumerate(rows):
        coordinate = plan.coordinate(rank)
        expected = [coordinate[axis] for axis in ("pp", "dp", "cp", "tp")]
        expect_equal(ctx, f"(pp, dp, cp, tp) of rank {rank}", expected, row)
    expect_equal(ctx, "different coordinates", ctx.world_size, len({tuple(row) for row in rows}))
