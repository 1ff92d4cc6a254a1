"""The norm of all gradients of the whole model, each parameter counted once however it is spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from meshlib import MeshContext

Groups = tuple[dist.ProcessGroup, ...]


def total_grad_norm(
    parameters: Iterable[nn.Parameter], mesh: MeshContext, *, count_replicated: bool = False
) -> float:
    """The 2-norm over all ranks and pipeline stages; every rank calls it, and gets the same number.

    A rank holds a shard of each gradient. Its squares are summed over the axes along which the parameter is
    sharded, and only those: along a replicated axis the others hold the same numbers.
    ``count_replicated`` makes the mistake of summing all of them over tp.
    """
    squares: dict[Groups, list[torch.Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            local, groups = _local_gradient(parameter.grad)
            if count_replicated and mesh.tp_size > 1:
                groups = tuple(dict.fromkeys((*groups, mesh.device_mesh.get_group("tp"))))
            squares[groups].append(local.square().sum())
    total = sum(_sum_over(groups, each) for groups, each in squares.items())
    assert isinstance(total, torch.Tensor)
    if mesh.pp_enabled:
        dist.all_reduce(total, group=mesh.pp_mesh.get_group())
    return total.sqrt().item()


def _local_gradient(grad: torch.Tensor) -> tuple[torch.Tensor, Groups]:
    """This rank's shard, and the groups along which the shards differ."""
    if not isinstance(grad, DTensor):
        return grad, ()
    mesh = grad.device_mesh
    sharded = [axis for axis, placement in enumerate(grad.placements) if not placement.is_replicate()]
    return grad.to_local(), tuple(mesh.get_group(axis) for axis in sharded if mesh.size(axis) > 1)


def _sum_over(groups: Groups, squares: list[torch.Tensor]) -> torch.Tensor:
    total = torch.stack(squares).sum()
    for group in groups:
        dist.all_reduce(total, group=group)
    return total
