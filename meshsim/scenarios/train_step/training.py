"""The training loop of one rank: forward and backward, gradient norm, optimiser step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from meshlib import MeshContext
from meshsim.scenarios.train_step.config import IGNORED, TrainConfig
from meshsim.scenarios.train_step.data import Batch
from meshsim.scenarios.train_step.model import Stage
from meshsim.scenarios.train_step.optimizer import ShardOptimizer

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


@dataclass
class Trainer:
    """Trains this rank's stage. Every rank calls ``step`` with its own part of the same global batch."""

    stage: Stage
    mesh: MeshContext
    config: TrainConfig
    device: torch.device
    schedule: str = "GPipe"

    def __post_init__(self) -> None:
        self._optimizer = ShardOptimizer(self.stage, self.config)
        self._token_count = 0
        self._pipeline = self._build_pipeline() if self.mesh.pp_enabled else None

    def forward_backward(self, batch: Batch) -> float:
        """Fill the gradients; the loss of the whole batch, on every rank."""
        self._token_count = self._count_tokens(batch)
        loss = self._run_pipeline(batch) if self._pipeline else self._run_stage(batch)
        return self._whole_loss(loss)

    def update(self) -> None:
        self._optimizer.step()

    def _count_tokens(self, batch: Batch) -> int:
        """Labels that count in the whole batch; ranks have differently many of them."""
        count = batch.counted
        dist.all_reduce(count, group=self.mesh.dp_cp_mesh.get_group())
        return int(count)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """This rank's share of the loss: the shares of all dp x cp ranks and microbatches add up to it."""
        summed = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / self._token_count

    def _run_stage(self, batch: Batch) -> torch.Tensor:
        loss = self._loss(self.stage(batch.tokens), batch.labels)
        loss.backward()
        return loss.detach()

    def _run_pipeline(self, batch: Batch) -> torch.Tensor:
        assert self._pipeline is not None
        losses: list[torch.Tensor] = []
        inputs = (batch.tokens,) if self.stage.embedding is not None else ()
        if self.stage.head is not None:
            self._pipeline.step(*inputs, target=batch.labels, losses=losses)
        else:
            self._pipeline.step(*inputs)
        if not losses:
            return torch.zeros((), dtype=self.config.dtype, device=self.device)
        return torch.stack(losses).sum().detach()

    def _whole_loss(self, share: torch.Tensor) -> float:
        dist.all_reduce(share, group=self.mesh.dp_cp_mesh.get_group())
        if self.mesh.pp_enabled:
            # Only the last stage has a loss; the others add 0.
            dist.all_reduce(share, group=self.mesh.pp_mesh.get_group())
        return share.item()

    def _build_pipeline(self) -> PipelineScheduleSingle:
        mesh = self.mesh
        stage = PipelineStage(
            self.stage, mesh.pp_rank, mesh.pp_size, self.device, group=mesh.pp_mesh.get_group()
        )
        # The loss is divided by the number of tokens already: no mean over microbatches.
        return SCHEDULES[self.schedule](
            stage, n_microbatches=self.config.microbatches, loss_fn=self._loss, scale_grads=False
        )
