"""The scenario ``grad_norm``."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.train_step.grad_norm import total_grad_norm

MAX_NORM = 1.5


def grad_norm(ctx: RankContext) -> float:
    """The gradient norm counts every element once, and clipping makes it what was asked.

    Gradients are whole numbers, so the norm is the root of a sum of squares that is known: of parameters
    sharded over FSDP, over FSDP and tp, over FSDP and replicated over tp, over the expert axes, and others on
    each pipeline stage. Returns the norm before clipping.

    Parameter ``break``: ``count_replicated`` counts what tp ranks hold alike once on each of them.
    """
    count_replicated = mistake(ctx.params, "count_replicated") == "count_replicated"
    parameters = _parameters(ctx)
    norm = total_grad_norm(parameters, ctx.mesh, count_replicated=count_replicated)
    expect_close(ctx, "gradient norm", _expected(ctx), norm)
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(MAX_NORM / norm)
    clipped = total_grad_norm(parameters, ctx.mesh, count_replicated=count_replicated)
    expect_close(ctx, "gradient norm after clipping", MAX_NORM, clipped)
    return norm


def _spreads(ctx: RankContext) -> list[tuple[DeviceMesh, tuple[Placement, ...]]]:
    """Meshes and placements of the parameters of one stage."""
    dense: DeviceMesh = ctx.mesh.fsdp_non_moe_mesh
    spreads: list[tuple[DeviceMesh, tuple[Placement, ...]]] = [
        (dense["fsdp_shard"], (Shard(0),)),
        (dense, (Replicate(), Shard(0), Shard(1))),
        (dense, (Replicate(), Shard(0), Replicate())),
    ]
    expert: DeviceMesh | None = ctx.mesh.fsdp_moe_mesh
    if expert is not None:
        spreads.append((expert, (Replicate(),) * (expert.ndim - 2) + (Shard(1), Shard(0))))
    return spreads


def _whole(stage: int, number: int) -> torch.Tensor:
    """The whole gradient of a stage's parameter. Its sides divide by nothing, so shards are uneven."""
    return ((torch.arange(11.0 * 13).view(11, 13) + 5 * number + 3 * stage) % 7) - 3


def _parameters(ctx: RankContext) -> list[nn.Parameter]:
    parameters = []
    for number, (mesh, placements) in enumerate(_spreads(ctx)):
        whole = _whole(ctx.mesh.pp_rank, number).to(ctx.device)
        # Every rank has the whole one, so nothing needs to be sent.
        grad = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        parameter = nn.Parameter(torch.zeros_like(grad))
        parameter.grad = grad
        parameters.append(parameter)
    return parameters


def _expected(ctx: RankContext) -> float:
    count = len(_spreads(ctx))
    every = (_whole(stage, number) for stage in range(ctx.mesh.pp_size) for number in range(count))
    return math.sqrt(sum(float(whole.square().sum()) for whole in every))
