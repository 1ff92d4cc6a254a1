"""The scenario ``grad_sync``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close
from meshsim.scenarios.parameters import mistake

WIDTH = 4


def grad_sync(ctx: RankContext) -> list[float]:
    """Gradients are the mean over all tokens of dp x cp, though ranks have unevenly many.

    The model is one weight vector and the loss of a token is half the square of its dot product with the
    weights: the gradient is known in closed form from all tokens together. Returns the gradient.

    Parameter ``break``: ``mean_of_means`` averages the ranks' own means; ``over_dp_only`` leaves out cp.
    """
    broken = mistake(ctx.params, "mean_of_means", "over_dp_only")
    mesh = ctx.mesh
    group = mesh.device_mesh.get_group("dp") if broken == "over_dp_only" else mesh.dp_cp_mesh.get_group()
    weight = torch.ones(WIDTH, device=ctx.device, requires_grad=True)
    own = _tokens(mesh.dp_rank, mesh.cp_rank, mesh.cp_size).to(ctx.device)
    summed = (own @ weight).square().sum() / 2
    tokens = torch.tensor(float(len(own)), device=ctx.device)
    if broken == "mean_of_means":
        (summed / tokens).backward()
        tokens.fill_(1)
    else:
        summed.backward()
    grad = weight.grad
    assert grad is not None
    dist.all_reduce(tokens, group=group)
    dist.all_reduce(grad, group=group)
    grad /= tokens
    expect_close(ctx, "gradient", _closed_form(ctx), grad)
    return [float(value) for value in grad]


def _tokens(dp_rank: int, cp_rank: int, cp_size: int) -> torch.Tensor:
    """(tokens, WIDTH): one token more for each rank further on."""
    number = dp_rank * cp_size + cp_rank
    count = number + 1
    return ((torch.arange(count * WIDTH) + 3 * number) % 7 - 2.0).view(count, WIDTH)


def _closed_form(ctx: RankContext) -> torch.Tensor:
    """The mean over all tokens x of (x . w) x, at w = 1."""
    cp_size, dp_size = ctx.mesh.cp_size, int(ctx.mesh.dp_size or 1)
    everything = torch.cat([_tokens(dp, cp, cp_size) for dp in range(dp_size) for cp in range(cp_size)])
    x = everything.double()
    return (x.sum(1, keepdim=True) * x).mean(0)
