"""The scenario ``fsdp_step``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close, expect_equal
from meshsim.scenarios.mesh_axes import groups_by_axis
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.seeding import seeded_generator

SAMPLES, WIDTH, RATE = 3, 5, 0.1


def fsdp_step(ctx: RankContext) -> float:
    """An FSDP2 or HSDP step equals that of a single process; replicas stay bit-identical.

    Every dp x cp rank has as many samples, so FSDP's own mean over the ranks is the mean over all samples.
    The layers' 5 rows don't divide by most numbers of ranks. Returns the sum of this rank's shards.

    Parameter ``break``: ``shard_axis_only`` shards over fsdp_shard and forgets fsdp_replicate.
    """
    mesh: DeviceMesh = ctx.mesh.fsdp_non_moe_mesh
    forget = mistake(ctx.params, "shard_axis_only") == "shard_axis_only"
    data_parallel = mesh["fsdp_shard"] if forget else mesh["fsdp_replicate", "fsdp_shard"]
    model = _model(ctx)
    fully_shard(model[0], mesh=data_parallel)
    fully_shard(model, mesh=data_parallel)
    own = ctx.mesh.dp_cp_mesh.get_local_rank()
    model(_samples(ctx)[own]).square().mean().backward()
    _descend(model)

    whole = _model(ctx)
    whole(_samples(ctx).flatten(0, 1)).square().mean().backward()
    _descend(whole)
    expected = dict(whole.named_parameters())
    total = 0.0
    for name, parameter in model.named_parameters():
        shard = _local(parameter.detach())
        total += shard.sum().item()
        _check_replicas(ctx, name, shard)
        expect_close(ctx, f"{name} after the step", _shard_of(ctx, expected[name].detach()), shard)
    return total


def _model(ctx: RankContext) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(ctx.device)
    generator = seeded_generator(ctx.seed, "fsdp_step weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def _samples(ctx: RankContext) -> torch.Tensor:
    """(dp x cp ranks, samples of each, width)."""
    ranks = ctx.mesh.plan.size("dp_cp")
    generator = seeded_generator(ctx.seed, "fsdp_step samples")
    return torch.randn(ranks, SAMPLES, WIDTH, generator=generator).to(ctx.device)


def _descend(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            _local(parameter).sub_(RATE * _local(parameter.grad))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shard_of(ctx: RankContext, whole: torch.Tensor) -> torch.Tensor:
    """FSDP splits the rows in chunks that are rounded up; the last ranks may have fewer rows, or none."""
    chunks = whole.chunk(ctx.mesh.plan.size("fsdp_shard"))
    place = ctx.mesh.plan.coordinate(ctx.rank, "fsdp")["fsdp_shard"]
    return chunks[place] if place < len(chunks) else whole[:0]


def _check_replicas(ctx: RankContext, name: str, shard: torch.Tensor) -> None:
    group = groups_by_axis(ctx.mesh)["fsdp_replicate"]
    gathered = shard.new_empty((group.size() * shard.shape[0], *shard.shape[1:]))
    dist.all_gather_single(gathered, shard, group=group)
    for replica in gathered.chunk(group.size()) if shard.numel() else ():
        expect_equal(ctx, f"{name} of the replicas", shard, replica)
