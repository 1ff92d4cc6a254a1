"""The scenario ``data_sharding``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_equal
from meshsim.scenarios.mesh_axes import groups_by_axis
from meshsim.scenarios.parameters import mistake

SEQUENCE = 8
"""Positions of a sample; the last cp ranks may have fewer of them, or none."""


def data_sharding(ctx: RankContext) -> list[int]:
    """Data parallel ranks share out all samples, each once; other axes have the same.

    Context parallel ranks share out each sample's positions. The number of samples doesn't divide by dp, so
    some ranks have one more. Returns this rank's samples.

    Parameter ``break``: ``by_global_rank`` chooses samples by the rank in the world instead of the dp rank.
    """
    dp_rank = ctx.mesh.dp_rank
    dp_size = int(ctx.mesh.dp_size or 1)
    if mistake(ctx.params, "by_global_rank") == "by_global_rank":
        dp_rank = ctx.rank % dp_size
    total = 3 * dp_size + 1
    samples = list(range(dp_rank, total, dp_size))
    positions = list(torch.arange(SEQUENCE).tensor_split(ctx.mesh.cp_size)[ctx.mesh.cp_rank].tolist())

    # How often each (sample, position) is seen by this rank; the ranks' sums say who sees what.
    seen = torch.zeros(total, SEQUENCE, device=ctx.device)
    for sample in samples:
        seen[sample, positions] += 1
    groups = groups_by_axis(ctx.mesh)
    expect_equal(
        ctx, "how often dp x cp ranks see each position", 1.0, _only_value(_summed(seen, groups["dp_cp"]))
    )
    for axis in ("tp", "pp"):
        size = ctx.mesh.plan.size(axis)
        expect_equal(ctx, f"what {axis} peers see, summed", size * seen, _summed(seen, groups[axis]))
    has_sample = torch.zeros(total, device=ctx.device)
    has_sample[samples] = 1
    together = _summed(has_sample, groups["cp"])
    expect_equal(ctx, "samples of cp peers, summed", ctx.mesh.cp_size * has_sample, together)
    return samples


def _summed(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = own.clone()
    dist.all_reduce(total, group=group)
    return total


def _only_value(tensor: torch.Tensor) -> object:
    values = tensor.unique().tolist()
    return values[0] if len(values) == 1 else values
