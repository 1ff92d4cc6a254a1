"""The right answers: the same training in one process, in plain tensor code of its own.

Only the initial weights and the batches are shared. Nothing here communicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from meshsim.scenarios.train_step.config import IGNORED, TrainConfig
from meshsim.scenarios.train_step.data import Batch, global_batch
from meshsim.scenarios.train_step.weights import initial_weights

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """What each step should give, and the weights after the last one."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    weights: Weights


@lru_cache(maxsize=64)
def reference_run(config: TrainConfig) -> Reference:
    """Train in this process. The result is shared between callers: don't change its tensors."""
    weights = {name: value.clone().requires_grad_() for name, value in initial_weights(config).items()}
    velocity: dict[str, torch.Tensor] = {}
    losses, norms = [], []
    for step in range(config.steps):
        loss = mean_loss(weights, global_batch(config, step), config)
        grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        losses.append(loss.item())
        norms.append(math.sqrt(sum(grad.square().sum().item() for grad in grads.values())))
        _descend(weights, grads, velocity, config)
    return Reference(tuple(losses), tuple(norms), {name: value.detach() for name, value in weights.items()})


def _descend(
    weights: Weights, grads: Weights, velocity: dict[str, torch.Tensor], config: TrainConfig
) -> None:
    with torch.no_grad():
        for name, grad in grads.items():
            before = velocity.get(name)
            velocity[name] = grad if before is None else config.momentum * before + grad
            weights[name].sub_(config.learning_rate * velocity[name])


def mean_loss(weights: Weights, batch: Batch, config: TrainConfig) -> torch.Tensor:
    """Cross entropy averaged over the labels that count, a scalar."""
    log_probability = logits(weights, batch.tokens, config).log_softmax(-1)
    counts = batch.labels != IGNORED
    of_label = log_probability.gather(-1, batch.labels.where(counts, 0)[..., None])[..., 0]
    return -(of_label * counts).sum() / counts.sum()


def logits(weights: Weights, tokens: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    """(samples, positions) token ids to (samples, positions, vocabulary)."""
    x = weights["embedding.tokens.weight"][tokens] + weights["embedding.positions.weight"]
    for layer in range(config.layers):
        prefix = f"blocks.{layer}."
        block = {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}
        x = x + attention(block, rms_norm(x, block["attention_norm.weight"], config), config)
        feed_forward = mixture_of_experts if config.experts else mlp
        x = x + feed_forward(block, rms_norm(x, block["feed_forward_norm.weight"], config), config)
    return rms_norm(x, weights["head.norm.weight"], config) @ weights["head.logits.weight"].T


def rms_norm(x: torch.Tensor, weight: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt() * weight


def attention(block: Weights, x: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    """Causal attention of (samples, positions, hidden), one head after the other."""
    projection = block["attention.qkv.weight"].view(config.heads, 3, config.head_dim, config.hidden)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    heads = []
    for head in range(config.heads):
        q, k, v = (x @ projection[head, part].T for part in range(3))
        scores = (q @ k.transpose(1, 2) / math.sqrt(config.head_dim)).masked_fill(future, -math.inf)
        heads.append(scores.softmax(-1) @ v)
    return torch.cat(heads, -1) @ block["attention.out.weight"].T


def mlp(block: Weights, x: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    inner = torch.nn.functional.silu(x @ block["feed_forward.up.weight"].T)
    return inner @ block["feed_forward.down.weight"].T + block["feed_forward.down.bias"]


def mixture_of_experts(block: Weights, x: torch.Tensor, config: TrainConfig) -> torch.Tensor:
    """Every expert works on every token; those that a token didn't choose get weight 0."""
    probability = (x @ block["feed_forward.router.weight"].T).softmax(-1)
    least = probability.topk(config.experts_per_token, -1).values[..., -1:]
    share = probability.where(probability >= least, 0)
    share = share / share.sum(-1, keepdim=True)
    inner = torch.nn.functional.silu(torch.einsum("sph,ehi->spei", x, block["feed_forward.experts.up"]))
    return torch.einsum("spei,eih,spe->sph", inner, block["feed_forward.experts.down"], share)
