"""The scenario ``tensor_parallel``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.seeding import seeded_generator

SAMPLES, WIDTH = 2, 6


class Model(nn.Module):
    """A norm, an MLP beside a residual, and logits."""

    def __init__(self, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)
        self.logits = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(x + self.down(F.gelu(self.up(self.norm(x)))))  # type: ignore[no-any-return]


def tensor_parallel(ctx: RankContext) -> float:
    """A tensor and sequence parallel MLP with loss parallel equals the unsplit one.

    Between the split layers the activations are split by position (sequence parallel), and the loss is taken
    from logits that are split by vocabulary (loss parallel). Loss and all gradients are compared. Returns the
    loss.

    Parameter ``break``: ``local_norm_grad`` keeps each rank's own gradient of the norm, which saw only the
    rank's positions.
    """
    keep_local = mistake(ctx.params, "local_norm_grad") == "local_norm_grad"
    tp = ctx.mesh.tp_size
    tokens, labels = _data(ctx, positions=2 * tp, vocabulary=4 * tp)
    whole = _model(ctx, inner=2 * tp, vocabulary=4 * tp)
    expected = F.cross_entropy(whole(tokens).flatten(0, 1), labels.flatten())
    expected.backward()

    split = _model(ctx, inner=2 * tp, vocabulary=4 * tp)
    tp_mesh: DeviceMesh = ctx.mesh.device_mesh["tp"]
    _parallelize(split, tp_mesh)
    own_tokens = tokens.chunk(tp, 1)[ctx.mesh.tp_rank]
    with loss_parallel():
        logits = split(DTensor.from_local(own_tokens, tp_mesh, [Shard(1)], run_check=False))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
    got = loss.full_tensor() if isinstance(loss, DTensor) else loss
    expect_close(ctx, "loss", expected.detach(), got.detach())
    for (name, parameter), right in zip(split.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(parameter.grad, DTensor)
        assert right.grad is not None
        local_only = keep_local and name.startswith("norm")
        grad = parameter.grad.to_local() if local_only else parameter.grad.full_tensor()
        expect_close(ctx, f"gradient of {name}", right.grad, grad)
    return got.item()


def _parallelize(model: Model, tp_mesh: DeviceMesh) -> None:
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "logits": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, tp_mesh, plan, src_data_rank=None)


def _model(ctx: RankContext, inner: int, vocabulary: int) -> Model:
    model = Model(inner, vocabulary).to(ctx.device)
    generator = seeded_generator(ctx.seed, "tensor_parallel weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


def _data(ctx: RankContext, positions: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(samples, positions, width) inputs and (samples, positions) labels, the same on all tp ranks."""
    generator = seeded_generator(ctx.seed, f"tensor_parallel data of dp {ctx.mesh.dp_rank}")
    tokens = torch.randn(SAMPLES, positions, WIDTH, generator=generator)
    labels = torch.randint(vocabulary, (SAMPLES, positions), generator=generator)
    return tokens.to(ctx.device), labels.to(ctx.device)
