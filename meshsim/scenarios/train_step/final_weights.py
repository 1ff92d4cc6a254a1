"""This rank's weights next to the part of the whole model's that they should equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from meshlib import MeshContext
from meshsim.scenarios.train_step.model import Stage

Part = Callable[[torch.Tensor], torch.Tensor]


def own_weights(stage: Stage, mesh: MeshContext) -> Iterator[tuple[str, torch.Tensor, Part]]:
    """Name, this rank's values, and what takes them from the whole weight. Undoes FSDP, not tp and ep."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
    for name, parameter in stage.named_parameters():
        if isinstance(parameter, DTensor):
            yield name, parameter.to_local().detach(), _part_of(parameter)
        else:
            yield name, parameter.detach(), lambda whole: whole


def _part_of(parameter: DTensor) -> Part:
    mesh, placements = parameter.device_mesh, parameter.placements

    def part(whole: torch.Tensor) -> torch.Tensor:
        for axis, placement in enumerate(placements):
            if isinstance(placement, Shard):
                whole = whole.chunk(mesh.size(axis), placement.dim)[mesh.get_local_rank(axis)]
        return whole

    return part
