"""How fast each rank computes, each on its own."""

from __future__ import annotations

import torch

from meshsim.context import RankContext
from meshsim.smoke.programs.timing import seconds_of


def compute(ctx: RankContext) -> float:
    """Seconds of a matrix product on this rank's device: the best of several, so that only what is always
    slow shows.

    Parameters: ``side`` of the square matrices, ``times``. Nothing is communicated.
    """
    side = int(ctx.params["side"])
    left = torch.ones(side, side, device=ctx.device)
    right = torch.ones(side, side, device=ctx.device)
    return min(seconds_of(ctx.device, lambda: left @ right, 1) for _ in range(int(ctx.params["times"])))
