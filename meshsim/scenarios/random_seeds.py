"""The scenario ``random_seeds``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_equal
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.seeding import seeded_generator

STREAMS = {
    "weights": ("pp", "tp"),
    "dropout": ("pp", "dp", "cp"),
    "dropout of sharded activations": ("pp", "dp", "cp", "tp"),
    "data order": (),
}
"""What random numbers are for, and the axes along which ranks must draw different ones."""


def random_seeds(ctx: RankContext) -> dict[str, list[float]]:
    """Ranks draw the same random numbers along axes that hold copies, others elsewhere.

    Weights differ by pipeline stage and tensor shard, and are the same across dp and cp. Dropout masks differ
    with the data, and are the same on tp ranks that hold the same activations. Returns the first draws of
    each stream.

    Parameter ``break``: ``seed_plus_rank`` seeds every stream with the seed and the rank in the world.
    """
    by_rank = mistake(ctx.params, "seed_plus_rank") == "seed_plus_rank"
    plan = ctx.mesh.plan
    drawn = {}
    for stream, axes in STREAMS.items():
        place = {axis: plan.coordinate(ctx.rank)[axis] for axis in axes}
        purpose = f"{stream} of rank {ctx.rank}" if by_rank else f"{stream} at {place}"
        own = torch.rand(4, generator=seeded_generator(ctx.seed, purpose)).to(ctx.device)
        gathered = own.new_empty(ctx.world_size * 4)
        dist.all_gather_single(gathered, own)
        _check(ctx, stream, axes, gathered.view(-1, 4))
        drawn[stream] = own.tolist()
    return drawn


def _check(ctx: RankContext, stream: str, axes: tuple[str, ...], draws: torch.Tensor) -> None:
    """This rank's draws against every other rank's."""
    plan = ctx.mesh.plan
    own = plan.coordinate(ctx.rank)
    for rank in range(ctx.world_size):
        other = plan.coordinate(rank)
        expected = all(own[axis] == other[axis] for axis in axes)
        equal = torch.equal(draws[ctx.rank], draws[rank])
        expect_equal(ctx, f"{stream}: the same random numbers as rank {rank}", expected, equal)
