"""The scenario ``context_parallel_attention``."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.seeding import seeded_generator

HEADS, HEAD_DIM = 2, 4
PART = 3
"""Positions in each of the 2 x cp parts of the sequence."""


def context_parallel_attention(ctx: RankContext) -> float:
    """Causal ring attention over cp equals attention over the whole sequence.

    Each cp rank has a part from the front and its mirror image from the back, so all have as much to do. Keys
    and values go round the ring; each rank adds up what its queries may see, with a running maximum. Returns
    the sum of this rank's output.

    Parameter ``break``: ``contiguous_mask`` masks as if each rank's positions were contiguous.
    """
    contiguous = mistake(ctx.params, "contiguous_mask") == "contiguous_mask"
    cp = ctx.mesh.cp_size
    q, k, v = _whole(ctx)
    expected = _attention(q, k, v)

    own = _positions(ctx.mesh.cp_rank, cp)
    mine = RunningAttention(q[:, own], _contiguous(ctx.mesh.cp_rank) if contiguous else own)
    keys, values = k[:, own].contiguous(), v[:, own].contiguous()
    for hop in range(cp):
        source = (ctx.mesh.cp_rank - hop) % cp
        places = _contiguous(source) if contiguous else _positions(source, cp)
        mine.add(keys, values, places)
        if hop < cp - 1:
            keys, values = _pass_on(ctx, torch.stack((keys, values)))
    got = mine.result()
    expect_close(ctx, "attention of this rank's positions", expected[:, own], got)
    return got.sum().item()


def _positions(rank: int, cp: int) -> torch.Tensor:
    """Part ``rank`` from the front and part ``rank`` from the back."""
    parts = torch.arange(2 * cp * PART).view(2 * cp, PART)
    return torch.cat((parts[rank], parts[2 * cp - 1 - rank]))


def _contiguous(rank: int) -> torch.Tensor:
    return torch.arange(2 * PART) + rank * 2 * PART


def _pass_on(ctx: RankContext, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """To the next cp rank, from the one before."""
    group = ctx.mesh.cp_mesh.get_group()
    plan = ctx.mesh.plan
    got = torch.empty_like(tensor)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, plan.neighbour("cp", ctx.rank, 1), group),
            dist.P2POp(dist.irecv, got, plan.neighbour("cp", ctx.rank, -1), group),
        ]
    )
    for work in works:
        work.wait()
    return got[0], got[1]


class RunningAttention:
    """Attention of some queries (heads, positions, head_dim) over keys that come block by block."""

    def __init__(self, queries: torch.Tensor, places: torch.Tensor) -> None:
        self.queries, self.places = queries, places
        self.highest = queries.new_full((*queries.shape[:2], 1), -math.inf)
        self.total = torch.zeros_like(self.highest)
        self.summed = torch.zeros_like(queries)

    def add(self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
        scores = self.queries @ keys.transpose(1, 2) / math.sqrt(HEAD_DIM)
        future = (self.places[:, None] < places).to(scores.device)
        scores = scores.masked_fill(future, -math.inf)
        highest = torch.maximum(self.highest, scores.amax(-1, keepdim=True))
        # A query that has seen nothing yet has -inf for its highest score; 0 keeps the differences defined.
        finite = highest.where(highest.isfinite(), 0)
        weights = (scores - finite).exp()
        before = (self.highest - finite).exp()
        self.total = self.total * before + weights.sum(-1, keepdim=True)
        self.summed = self.summed * before + weights @ values
        self.highest = highest

    def result(self) -> torch.Tensor:
        return self.summed / self.total


def _whole(ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of the whole sequence, each (heads, positions, head_dim)."""
    generator = seeded_generator(ctx.seed, "context_parallel_attention")
    shape = (3, HEADS, 2 * ctx.mesh.cp_size * PART, HEAD_DIM)
    q, k, v = torch.randn(shape, generator=generator).to(ctx.device)
    return q, k, v


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)).masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v
