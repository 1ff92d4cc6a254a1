"""The scenario ``moe``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshlib import MeshPlan
from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.seeding import seeded_generator
from meshsim.scenarios.train_step.exchange import exchange_rows

WIDTH, TOKENS = 3, 5
EXPERTS_PER_RANK = 2


def moe(ctx: RankContext) -> list[int]:
    """Tokens reach their experts over ep and come back; experts' gradients are summed over edp.

    Every rank of a pipeline stage has tokens of its own, each for one expert; an expert is a weight vector
    that multiplies the token. Outputs and gradients are known from all tokens without any exchange. Returns
    how many tokens went to each rank of the ep group.

    Parameter ``break``: ``edp_shard_only`` leaves out edp_replicate from the sum of the gradients.
    """
    forget = mistake(ctx.params, "edp_shard_only") == "edp_shard_only"
    mesh, plan = ctx.mesh, ctx.mesh.plan
    group = mesh.fsdp_moe_mesh.get_group("ep")
    place = plan.coordinate(ctx.rank, "expert")["ep"]
    weights = _weights(ctx)
    own = weights[place * EXPERTS_PER_RANK : (place + 1) * EXPERTS_PER_RANK].clone().requires_grad_()

    tokens, expert = _tokens(ctx, ctx.rank)
    order = expert.argsort(stable=True)
    counts = expert.bincount(minlength=len(weights))
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    sent = counts.view(group.size(), -1).sum(1).tolist()
    received = arriving.view(group.size(), -1).sum(1).tolist()
    there = exchange_rows(tokens[order], sent, received, group)
    local = torch.arange(EXPERTS_PER_RANK, device=ctx.device).repeat(group.size())
    back = exchange_rows(there * own[local.repeat_interleave(arriving)], received, sent, group)
    output = torch.empty_like(back).index_copy(0, order, back)
    output.sum().backward()

    expect_close(ctx, "output", tokens * weights[expert], output.detach())
    grad = own.grad
    assert grad is not None
    axes = ["edp_shard"] if forget else [a for a in mesh.fsdp_moe_mesh.mesh_dim_names if a != "ep"]
    for axis in axes:
        dist.all_reduce(grad, group=mesh.fsdp_moe_mesh.get_group(axis))
    expect_close(ctx, "experts' gradients", _expected_grad(ctx, place), grad)
    return [int(number) for number in sent]


def _unsupported(plan: MeshPlan) -> str | None:
    return "moe needs experts on several ranks: ep above 1" if plan.size("ep") == 1 else None


moe.unsupported = _unsupported  # type: ignore[attr-defined]


def _weights(ctx: RankContext) -> torch.Tensor:
    """(experts of the stage, width)."""
    experts = EXPERTS_PER_RANK * ctx.mesh.ep_size
    generator = seeded_generator(ctx.seed, f"moe weights of stage {ctx.mesh.pp_rank}")
    return torch.randn(experts, WIDTH, generator=generator).to(ctx.device)


def _tokens(ctx: RankContext, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's tokens (tokens, width) and each one's expert."""
    generator = seeded_generator(ctx.seed, f"moe tokens of rank {rank}")
    tokens = torch.randn(TOKENS, WIDTH, generator=generator)
    expert = torch.randint(EXPERTS_PER_RANK * ctx.mesh.ep_size, (TOKENS,), generator=generator)
    return tokens.to(ctx.device), expert.to(ctx.device)


def _expected_grad(ctx: RankContext, place: int) -> torch.Tensor:
    """Each expert's gradient is the sum of its tokens, of all ranks of the groups that hold copies of it."""
    plan = ctx.mesh.plan
    grads = torch.zeros(EXPERTS_PER_RANK * ctx.mesh.ep_size, WIDTH, device=ctx.device)
    for rank in plan.group(("dp", "cp", "tp"), ctx.rank):
        tokens, expert = _tokens(ctx, rank)
        grads.index_add_(0, expert, tokens)
    return grads[place * EXPERTS_PER_RANK : (place + 1) * EXPERTS_PER_RANK]
