"""The scenario ``checkpoint``."""

from __future__ import annotations

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_equal
from meshsim.scenarios.parameters import mistake

ROWS, COLUMNS = 7, 10

Spread = tuple[Placement, ...]


def checkpoint(ctx: RankContext) -> float:
    """A checkpoint saved from one way of sharding loads into others, to the bit.

    Tensors sharded by rows over FSDP and columns over tp are saved with torch's distributed checkpoint, and
    loaded sharded the other way round, and replicated. Neither side of the tensor divides by most numbers of
    ranks. Each pipeline stage has a tensor of its own. The folder must be one that all ranks see. Returns the
    sum of the values.

    Parameter ``break``: ``without_resharding`` takes the saved shard for the loaded one.
    """
    careless = mistake(ctx.params, "without_resharding") == "without_resharding"
    mesh: DeviceMesh = ctx.mesh.fsdp_non_moe_mesh
    name, whole = f"stage {ctx.mesh.pp_rank}", _values(ctx)
    saved = distribute_tensor(whole, mesh, (Replicate(), Shard(0), Shard(1)), src_data_rank=None)
    folder = _shared_folder(ctx)
    try:
        save({name: saved}, checkpoint_id=folder)
        for spread in ((Replicate(), Shard(1), Shard(0)), (Replicate(), Replicate(), Replicate())):
            loaded = distribute_tensor(torch.zeros_like(whole), mesh, spread, src_data_rank=None)
            load({name: loaded}, checkpoint_id=folder)
            expected = distribute_tensor(whole, mesh, spread, src_data_rank=None)
            _check(ctx, expected, saved if careless else loaded)
    finally:
        dist.barrier()
        if ctx.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return float(whole.sum())


def _check(ctx: RankContext, expected: DTensor, loaded: DTensor) -> None:
    spread = ", ".join(str(placement) for placement in expected.placements)
    expect_equal(ctx, f"own shard loaded as ({spread})", expected.to_local(), loaded.to_local())


def _values(ctx: RankContext) -> torch.Tensor:
    return (
        torch.arange(float(ROWS * COLUMNS), device=ctx.device).view(ROWS, COLUMNS) + 1000 * ctx.mesh.pp_rank
    )


def _shared_folder(ctx: RankContext) -> str:
    """A temporary folder that rank 0 makes and tells the others of."""
    told = [tempfile.mkdtemp(prefix="meshsim-checkpoint-") if ctx.rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return str(told[0])
