"""Mixture of experts whose experts live on different ranks: tokens travel to them and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from meshsim.scenarios.train_step.config import TrainConfig
from meshsim.scenarios.train_step.exchange import exchange_rows, gather_replicated, split_replicated


@dataclass(frozen=True)
class TokenRouting:
    """The ranks that tokens go to, and those that hold the same tokens as this one."""

    ep_group: dist.ProcessGroup
    """Each holds ``experts / size`` experts, in order."""
    tp_group: dist.ProcessGroup | None
    """All hold the same tokens, so each sends only its share of them; None when this rank is alone."""


class Experts(nn.Module):
    """This rank's experts. Built with the weights of all; ``parallel`` leaves each rank its own."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(config.experts, config.hidden, config.expert_size))
        self.down = nn.Parameter(torch.empty(config.experts, config.expert_size, config.hidden))

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Rows (tokens, hidden) in order of the experts; ``counts[i]`` of them are for local expert i."""
        pairs = zip(_local(self.up), _local(self.down), strict=True)
        return torch.cat(
            [F.silu(own @ up) @ down for own, (up, down) in zip(rows.split(counts), pairs, strict=True)]
        )


class MixtureOfExperts(nn.Module):
    """Each token goes to its most probable experts; their results are mixed by probability."""

    def __init__(self, config: TrainConfig, routing: TokenRouting) -> None:
        super().__init__()
        self.routing, self.chosen_count, self.expert_count = routing, config.experts_per_token, config.experts
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        # On all tokens, before they are split over tp: so the router's gradients are whole on every tp rank.
        share, expert = self.router(tokens).softmax(-1).topk(self.chosen_count, dim=-1)
        share = share / share.sum(-1, keepdim=True)
        tp_group = self.routing.tp_group
        if tp_group is None:
            return self.mix(tokens, share, expert).view_as(x)
        parts = [split_replicated(whole, tp_group, dim=0) for whole in (tokens, share, expert)]
        return gather_replicated(self.mix(*parts), tp_group, dim=0).view_as(x)

    def mix(self, tokens: torch.Tensor, share: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """``tokens`` (tokens, hidden); ``share`` and ``expert`` (tokens, experts_per_token)."""
        order = expert.flatten().argsort(stable=True)  # by expert, so also by the rank that has it
        source = order // self.chosen_count
        outputs = self.at_experts(tokens[source], expert.flatten().bincount(minlength=self.expert_count))
        weighted = outputs * share.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, source, weighted)

    def at_experts(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Send rows, which are in order of the experts, to the experts' ranks, and fetch the results."""
        group = self.routing.ep_group
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        by_source = arriving.view(group.size(), -1)  # (rank that sends, local expert)
        sent = counts.view(group.size(), -1).sum(1).tolist()
        received = by_source.sum(1).tolist()
        there = exchange_rows(rows, sent, received, group)
        local_expert = torch.arange(by_source.shape[1], device=rows.device).repeat(group.size())
        order = local_expert.repeat_interleave(by_source.flatten()).argsort(stable=True)
        results = self.experts(there[order], by_source.sum(0).tolist())
        return exchange_rows(torch.empty_like(results).index_copy(0, order, results), received, sent, group)


def _local(weight: torch.Tensor) -> torch.Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
