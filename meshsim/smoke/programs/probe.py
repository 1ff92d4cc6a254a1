"""One all-reduce among some ranks: the question that a bisection asks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.smoke.programs.predictable import contribution, total, wrong

_COUNT = 1024


def probe(ctx: RankContext) -> int | None:
    """An all-reduce among the ranks of the parameter ``members``: the number of wrong elements there, None on
    the other ranks, which only create the group.
    """
    members = [int(rank) for rank in ctx.params["members"]]
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    size = len(members)
    data = contribution(members.index(ctx.rank), size, _COUNT, torch.float32, ctx.device)
    dist.all_reduce(data, group=group)
    return wrong(total(size, _COUNT, torch.float32, ctx.device), data)
