"""What every rank does in every world, once its default process group is up."""

from __future__ import annotations

from typing import Any

import torch

from meshlib import MeshContext
from meshsim.context import RankContext, running
from meshsim.worlds.base import RunRequest
from meshsim.worlds.recorder import Recorder


def run_rank(
    request: RunRequest, *, rank: int, local_rank: int, device: torch.device, recorder: Recorder | None = None
) -> Any:
    """Bind the mesh, run the scenario, tear the mesh down again. Returns what the scenario returned."""
    if recorder is None:
        recorder = Recorder(rank)
        recorder.axis_of = request.plan.axis_of
    recorder.internal = True
    mesh = MeshContext.from_plan(request.plan)
    with mesh:
        mesh.build_meshes(device.type, request.world_size)
        context = RankContext(
            rank=rank,
            world_size=request.world_size,
            local_rank=local_rank,
            device=device,
            mesh=mesh,
            seed=request.seed,
            params=dict(request.params),
        )
        token = running.set(context)
        recorder.internal = False
        try:
            return request.scenario(context)
        finally:
            recorder.internal = True
            recorder.watch.close()
            running.reset(token)
