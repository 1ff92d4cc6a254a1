"""The data of each step, and the part of it that a rank gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from meshlib import MeshContext
from meshsim.scenarios.seeding import seeded_generator
from meshsim.scenarios.train_step.config import IGNORED, TrainConfig


@dataclass(frozen=True)
class Batch:
    """``tokens`` and ``labels``, both (samples, positions); a label of -100 doesn't count."""

    tokens: torch.Tensor
    labels: torch.Tensor

    @property
    def counted(self) -> torch.Tensor:
        """How many labels count, a scalar tensor."""
        return (self.labels != IGNORED).sum()

    def to(self, device: torch.device) -> Batch:
        return Batch(self.tokens.to(device), self.labels.to(device))


def global_batch(config: TrainConfig, step: int) -> Batch:
    """The whole batch of a step. Some labels are masked, more of them towards the end of the sequence."""
    generator = seeded_generator(config.seed, f"batch of step {step}")
    shape = (config.batch, config.sequence)
    tokens = torch.randint(config.vocabulary, shape, generator=generator)
    labels = torch.randint(config.vocabulary, shape, generator=generator)
    masked = torch.rand(shape, generator=generator) < torch.linspace(0, 0.8, config.sequence)
    masked[0] = False  # something counts at every position
    return Batch(tokens, labels.masked_fill(masked, IGNORED))


def own_part(batch: Batch, mesh: MeshContext) -> Batch:
    """This rank's samples (split over dp) and positions (split over cp)."""

    def part(whole: torch.Tensor) -> torch.Tensor:
        samples = whole.chunk(mesh.dp_size or 1, dim=0)[mesh.dp_rank]
        return samples.chunk(mesh.cp_size, dim=1)[mesh.cp_rank].contiguous()

    return Batch(part(batch.tokens), part(batch.labels))
