"""The model, as one rank runs it: a small transformer of which a rank holds one pipeline stage.

The modules know the sequence split (attention looks across it) and the expert split (tokens travel).
Tensor parallelism and FSDP are laid over them from outside, see ``parallel``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from meshsim.scenarios.train_step.config import TrainConfig
from meshsim.scenarios.train_step.exchange import gather
from meshsim.scenarios.train_step.experts import MixtureOfExperts, TokenRouting


@dataclass(frozen=True)
class SequencePart:
    """Which positions this rank works on: part ``rank`` of ``size`` equal ones."""

    rank: int
    size: int
    group: dist.ProcessGroup | None
    """The ranks that hold the other parts; None when there are none."""

    def first(self, positions: int) -> int:
        """The first position of a part of that many positions."""
        return self.rank * positions


class Embedding(nn.Module):
    """(samples, positions) token ids to (samples, positions, hidden)."""

    def __init__(self, config: TrainConfig, part: SequencePart) -> None:
        super().__init__()
        self.part = part
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.sequence, config.hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count = tokens.shape[1]
        first = self.part.first(count)
        places = torch.arange(first, first + count, device=tokens.device)
        return self.tokens(tokens) + self.positions(places)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal attention of this rank's positions over the whole sequence, with this rank's heads."""

    def __init__(self, config: TrainConfig, part: SequencePart, *, local_mask: bool = False) -> None:
        super().__init__()
        self.part, self.head_dim, self.local_mask = part, config.head_dim, local_mask
        inner = config.heads * config.head_dim
        # Head by head: q, k, v. Then a split of the rows over tp gives each rank whole heads.
        self.qkv = nn.Linear(config.hidden, 3 * inner, bias=False)
        self.out = nn.Linear(inner, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, positions, _ = x.shape
        by_head = self.qkv(x.flatten(0, 1)).view(samples, positions, -1, 3, self.head_dim)
        q, k, v = by_head.permute(3, 0, 2, 1, 4)  # each (samples, heads here, positions here, head_dim)
        if self.part.group is not None:
            k, v = gather(torch.stack((k, v)), self.part.group, dim=3)
        mask = self.mask(q.shape[2], k.shape[2], x.device)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        by_token = attended.transpose(1, 2).reshape(samples * positions, -1)
        return self.out(by_token).view_as(x)  # type: ignore[no-any-return]

    def mask(self, queries: int, keys: int, device: torch.device) -> torch.Tensor:
        """Which keys each query may see: those at its own place in the whole sequence and before."""
        first = 0 if self.local_mask else self.part.first(queries)
        places = torch.arange(first, first + queries, device=device)
        return torch.ge(places[:, None], torch.arange(keys, device=device))


class Mlp(nn.Module):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.mlp_size, bias=False)
        self.down = nn.Linear(config.mlp_size, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.up(x.flatten(0, 1)))).view_as(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then an MLP or experts, each behind a norm and beside a residual."""

    def __init__(self, config: TrainConfig, attention: Attention, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.attention = attention
        self.feed_forward_norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.feed_forward = feed_forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class Head(nn.Module):
    """(samples, positions, hidden) to (tokens, vocabulary) logits, one row a token."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden, eps=config.norm_eps)
        self.logits = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(x.flatten(0, 1)))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """The blocks of one pipeline stage; the first also embeds, the last also makes the logits.

    Parameters keep the names that they have in the whole model, so that any split loads the same weights.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        stage: int = 0,
        stages: int = 1,
        part: SequencePart = SequencePart(0, 1, None),
        routing: TokenRouting | None = None,
        local_mask: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(config, part) if stage == 0 else None
        self.blocks = nn.ModuleDict()
        for layer in stage_layers(config.layers, stage, stages):
            feed_forward = Mlp(config) if routing is None else MixtureOfExperts(config, routing)
            attention = Attention(config, part, local_mask=local_mask)
            self.blocks[str(layer)] = Block(config, attention, feed_forward)
        self.head = Head(config) if stage == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        # With tp the logits are a view of a DTensor's shard, and FSDP wants no view from a module.
        return x if self.head is None else self.head(x).clone()


def stage_layers(layers: int, stage: int, stages: int) -> range:
    """The layers of a stage: contiguous, and as even as can be."""
    return range(layers * stage // stages, layers * (stage + 1) // stages)
