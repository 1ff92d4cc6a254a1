"""The optimiser of one rank's shards."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from meshsim.scenarios.train_step.config import TrainConfig


class ShardOptimizer:
    """SGD with momentum on this rank's shards, as plain tensors.

    SGD works element by element, so a rank can update its shard without knowing of the others. SGD and not
    Adam, which hides gradients of a wrong scale.
    """

    def __init__(self, module: nn.Module, config: TrainConfig) -> None:
        self._parameters = list(module.parameters())
        # Each shares its memory with the parameter's shard.
        self._shards = [_local(parameter).detach().requires_grad_() for parameter in self._parameters]
        self._sgd = torch.optim.SGD(
            self._shards, lr=config.learning_rate, momentum=config.momentum, foreach=True
        )

    def step(self) -> None:
        """Update the parameters from their gradients, and forget these."""
        for parameter, shard in zip(self._parameters, self._shards, strict=True):
            shard.grad = None if parameter.grad is None else _local(parameter.grad)
            parameter.grad = None
        self._sgd.step()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
