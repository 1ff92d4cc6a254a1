"""Data-parallel training of ``y = x @ w``, with weights split by columns over another group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def average_gradients(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The mean of the group's gradients."""
    dist.all_reduce(gradient, group=group)
    return gradient / dist.get_world_size(group)


def clip_by_global_norm(gradient: Tensor, limit: float, shards: dist.ProcessGroup) -> Tensor:
    """Scale the shards of one gradient so that the whole has at most this norm."""
    squared = gradient.pow(2).sum()
    dist.all_reduce(squared, group=shards)
    return gradient * min(1.0, limit / (squared.sqrt().item() + 1e-12))


def train(
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    steps: int,
    rate: float,
    replicas: dist.ProcessGroup,
    shards: dist.ProcessGroup,
) -> Tensor:
    """Train this rank's columns of the weights on this rank's rows of the batch."""
    for _ in range(steps):
        error = inputs @ weights - targets
        gradient = average_gradients(2 * inputs.T @ error / len(inputs), replicas)
        weights = weights - rate * clip_by_global_norm(gradient, 10.0, shards)
    return weights


def reference(inputs: Tensor, targets: Tensor, weights: Tensor, *, steps: int, rate: float) -> Tensor:
    """The same in one process."""
    for _ in range(steps):
        gradient = 2 * inputs.T @ (inputs @ weights - targets) / len(inputs)
        norm = torch.linalg.vector_norm(gradient).item()
        weights = weights - rate * gradient * min(1.0, 10.0 / (norm + 1e-12))
    return weights
