"""The scenario: three steps in parallel, compared with the same three steps in one process."""

from __future__ import annotations

import torch

from meshsim.context import RankContext
from meshsim.scenarios.parameters import chosen
from meshsim.scenarios.train_step.breakage import Breakage
from meshsim.scenarios.train_step.comparison import Comparison
from meshsim.scenarios.train_step.config import TrainConfig
from meshsim.scenarios.train_step.data import global_batch, own_part
from meshsim.scenarios.train_step.final_weights import own_weights
from meshsim.scenarios.train_step.grad_norm import total_grad_norm
from meshsim.scenarios.train_step.parallel import build_stage
from meshsim.scenarios.train_step.reference import reference_run
from meshsim.scenarios.train_step.training import SCHEDULES, Trainer

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
"""By dtype, relative. In float64 another order of sums makes some 1e-15, and a mistake 1e-3 and more."""

PARAMETERS = {
    "dtype": tuple(TOLERANCES),
    "schedule": tuple(SCHEDULES),
    "break": tuple(one.value for one in Breakage),
}


def train_step(ctx: RankContext) -> dict[str, list[float]]:
    """A transformer's steps equal those of a single process: loss, gradient norm, weights.

    A small model with attention and an MLP (experts when ep is above 1), split over every axis of the mesh:
    FSDP2 over dp x cp, HSDP with dp_replicate, tensor parallel heads, the sequence over cp, pipeline stages,
    experts with their gradients over edp. Each rank also trains the whole model by itself, in plain code
    without communication, and compares. Returns ``{"loss": [...], "grad_norm": [...]}``, one number a step,
    the same on every rank.

    Parameters: ``dtype`` is ``float64`` (default) or ``float32``; ``schedule`` is ``GPipe`` (default) or
    ``1F1B``; ``break`` makes a mistake on purpose, which the run must find, see ``Breakage``.
    """
    settings = chosen(ctx.params, PARAMETERS)
    dtype, schedule, broken = settings["dtype"], settings["schedule"], Breakage(settings["break"])
    config = TrainConfig.of_plan(ctx.mesh.plan, seed=ctx.seed, dtype=getattr(torch, dtype), schedule=schedule)
    expected = reference_run(config)
    same = Comparison(ctx.mesh.plan.topology, TOLERANCES[dtype])
    stage = build_stage(config, ctx.mesh, ctx.device, broken)
    trainer = Trainer(stage, ctx.mesh, config, ctx.device, schedule)
    seen: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for step in range(config.steps):
        loss = trainer.forward_backward(own_part(global_batch(config, step), ctx.mesh).to(ctx.device))
        norm = total_grad_norm(
            stage.parameters(), ctx.mesh, count_replicated=broken is Breakage.NORM_COUNTS_REPLICATED
        )
        same.number("loss", step, expected.losses[step], loss)
        same.number("gradient norm", step, expected.grad_norms[step], norm)
        trainer.update()
        seen["loss"].append(loss)
        seen["grad_norm"].append(norm)
    for name, weight, part in own_weights(stage, ctx.mesh):
        same.tensor(f"weight {name}", config.steps - 1, part(expected.weights[name]), weight)
    return seen
