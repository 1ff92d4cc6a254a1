"""The scenario ``pipeline``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from meshsim.context import RankContext
from meshsim.scenarios.expect import expect_close
from meshsim.scenarios.parameters import mistake
from meshsim.scenarios.seeding import seeded_generator

WIDTH = 4


def pipeline(ctx: RankContext) -> dict[str, float]:
    """Pipeline schedules (GPipe, 1F1B, interleaved) give the unsplit model's loss and gradients.

    Twice as many layers as ranks, one or two of them a stage; as many microbatches as ranks. Returns the loss
    by schedule, 0 on ranks without the last stage.

    Parameter ``break``: ``mean_of_sums`` lets the schedule average gradients of a loss that is a sum.
    """
    average = mistake(ctx.params, "mean_of_sums") == "mean_of_sums"
    losses = {
        "GPipe": _run_single(ctx, ScheduleGPipe, average),
        "1F1B": _run_single(ctx, Schedule1F1B, average),
    }
    losses["interleaved 1F1B"] = _run_interleaved(ctx, average)
    return losses


def _run_single(ctx: RankContext, schedule: type[ScheduleGPipe] | type[Schedule1F1B], average: bool) -> float:
    """Each rank has one stage of two neighbouring layers."""
    layers = _layers(ctx)
    own = {ctx.mesh.pp_rank: nn.Sequential(*layers[2 * ctx.mesh.pp_rank : 2 * ctx.mesh.pp_rank + 2])}
    stage = _stages(ctx, own, ctx.mesh.pp_size)[0]
    return _step(ctx, schedule(stage, _microbatches(ctx), loss_fn=_loss, scale_grads=average), layers, own)


def _run_interleaved(ctx: RankContext, average: bool) -> float:
    """Each rank has two stages of one layer, half the model apart."""
    layers = _layers(ctx)
    pp = ctx.mesh.pp_size
    own = {number: nn.Sequential(layers[number]) for number in (ctx.mesh.pp_rank, ctx.mesh.pp_rank + pp)}
    stages = _stages(ctx, own, 2 * pp)
    schedule = ScheduleInterleaved1F1B(stages, _microbatches(ctx), loss_fn=_loss, scale_grads=average)
    return _step(ctx, schedule, layers, own)


def _stages(ctx: RankContext, own: dict[int, nn.Sequential], count: int) -> list[Any]:
    group = ctx.mesh.pp_mesh.get_group()
    return [PipelineStage(module, number, count, ctx.device, group=group) for number, module in own.items()]


def _step(
    ctx: RankContext, schedule: object, layers: list[nn.Module], own: dict[int, nn.Sequential]
) -> float:
    inputs, target = _data(ctx)
    losses: list[torch.Tensor] = []
    first, last = ctx.mesh.pp_rank == 0, ctx.mesh.pp_rank == ctx.mesh.pp_size - 1
    schedule.step(  # type: ignore[attr-defined]
        *((inputs,) if first else ()), **({"target": target, "losses": losses} if last else {})
    )
    name = type(schedule).__name__
    loss = torch.stack(losses).sum().item() if losses else 0.0
    whole = nn.Sequential(*_layers(ctx))
    expected = _loss(whole(inputs), target)
    expected.backward()
    if last:
        expect_close(ctx, f"{name}: loss", expected.item(), loss)
    for number, layer in enumerate(layers):
        if any(layer in module for module in own.values()):
            for right, got in zip(whole[number].parameters(), layer.parameters(), strict=True):
                assert right.grad is not None
                assert got.grad is not None
                expect_close(ctx, f"{name}: gradient of layer {number}", right.grad, got.grad)
    return loss


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def _microbatches(ctx: RankContext) -> int:
    return max(2, ctx.mesh.pp_size)


def _layers(ctx: RankContext) -> list[nn.Module]:
    generator = seeded_generator(ctx.seed, "pipeline weights")
    layers: list[nn.Module] = [
        nn.Linear(WIDTH, WIDTH, device=ctx.device) for _ in range(2 * ctx.mesh.pp_size)
    ]
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return layers


def _data(ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded_generator(ctx.seed, f"pipeline data of dp {ctx.mesh.dp_rank}")
    inputs, target = torch.randn(2, _microbatches(ctx), WIDTH, generator=generator).to(ctx.device)
    return inputs, target
