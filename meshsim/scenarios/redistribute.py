"""The scenario ``redistribute``."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_equal
from meshsim.scenarios.parameters import mistake

ROWS, COLUMNS = 7, 5
"""They divide by no number of ranks but their own, so shards are uneven, and some ranks have none."""

WALK: tuple[Placement, ...] = (Shard(1), Replicate(), Shard(0), Replicate(), Shard(1), Shard(0))


def redistribute(ctx: RankContext) -> list[int]:
    """DTensors with uneven shards keep every element from one placement to another.

    On each axis of the device mesh: made from shards of uneven size, led through a walk of placements, and
    from a sum that is still to be taken to a shard and to the whole. Returns this rank's number of rows on
    dp, cp and tp.

    Parameter ``break``: ``shape_from_shard`` makes the DTensor without telling it the whole shape.
    """
    careless = mistake(ctx.params, "shape_from_shard") == "shape_from_shard"
    rows = []
    for axis in ("dp", "cp", "tp"):
        mesh: DeviceMesh = ctx.mesh.device_mesh[axis]
        whole = torch.arange(float(ROWS * COLUMNS), device=ctx.device).view(ROWS, COLUMNS)
        own = _part(whole, Shard(0), mesh)
        shape, stride = (None, None) if careless else (whole.shape, whole.stride())
        tensor = DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        expect_equal(ctx, f"shape on {axis}", list(whole.shape), list(tensor.shape))
        for placement in WALK:
            tensor = tensor.redistribute(placements=[placement])
            _check(ctx, f"{placement} on {axis}", _part(whole, placement, mesh), tensor)
        _check_partial(ctx, axis, whole, mesh)
        rows.append(len(own))
    return rows


def _check_partial(ctx: RankContext, axis: str, whole: torch.Tensor, mesh: DeviceMesh) -> None:
    """Each rank adds its place to every element; the sum is n times the whole, and 0 + 1 + ... + n - 1."""
    size = mesh.size()
    summand = DTensor.from_local(whole + mesh.get_local_rank(), mesh, [Partial()], run_check=False)
    total = size * whole + size * (size - 1) / 2
    for placement in (Shard(0), Shard(1), Replicate()):
        what = f"sum to {placement} on {axis}"
        _check(ctx, what, _part(total, placement, mesh), summand.redistribute(placements=[placement]))


def _check(ctx: RankContext, what: str, expected: torch.Tensor, got: DTensor) -> None:
    expect_equal(ctx, what, expected, got.to_local())


def _part(whole: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's: DTensor's shards are chunks that are rounded up, so the last ranks have fewer or none."""
    if not isinstance(placement, Shard):
        return whole
    chunks = whole.chunk(mesh.size(), placement.dim)
    place = mesh.get_local_rank()
    if place < len(chunks):
        return chunks[place].contiguous()
    return whole.narrow(placement.dim, 0, 0).contiguous()
