"""The single-process reference of train_step, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from meshlib import MeshPlan, topologies
from meshsim.scenarios.train_step import reference
from meshsim.scenarios.train_step.config import IGNORED, TrainConfig
from meshsim.scenarios.train_step.data import Batch, global_batch
from meshsim.scenarios.train_step.experts import TokenRouting
from meshsim.scenarios.train_step.model import Stage
from meshsim.scenarios.train_step.weights import initial_weights

CONFIG = replace(TrainConfig.of_plan(MeshPlan.build("dp=1", 1)), layers=2)


def f64(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_rms_norm() -> None:
    config = replace(CONFIG, norm_eps=0.0)
    # The mean of 9 and 16 is 12.5.
    expected = f64(3 / math.sqrt(12.5), 2 * 4 / math.sqrt(12.5))
    torch.testing.assert_close(reference.rms_norm(f64(3, 4), f64(1, 2), config), expected)


def test_attention_without_scores_averages_what_a_position_may_see() -> None:
    config = replace(CONFIG, heads=1, head_dim=2, hidden=2)
    nothing, identity = torch.zeros(2, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    block = {
        "attention.qkv.weight": torch.cat([nothing, nothing, identity]),
        "attention.out.weight": identity,
    }
    x = f64([6, 0], [0, 12], [3, 3])[None]
    expected = f64([6, 0], [3, 6], [3, 5])[None]
    torch.testing.assert_close(reference.attention(block, x, config), expected)


def test_attention_scales_scores_by_the_root_of_the_head_size() -> None:
    config = replace(CONFIG, heads=1, head_dim=4, hidden=4)
    identity = torch.eye(4, dtype=torch.float64)
    block = {"attention.qkv.weight": torch.cat([identity] * 3), "attention.out.weight": identity}
    root = math.sqrt(
        2 * math.log(3)
    )  # q.k / sqrt(4) is log 3 with itself, 0 with the other: weights 3/4 and 1/4
    x = f64([root, 0, 0, 0], [0, root, 0, 0])[None]
    expected = f64([root, 0, 0, 0], [root / 4, root * 3 / 4, 0, 0])[None]
    torch.testing.assert_close(reference.attention(block, x, config), expected)


def test_heads_are_separate_and_side_by_side() -> None:
    config = replace(CONFIG, heads=2, head_dim=1, hidden=2)
    # Rows: q, k, v of head 0, then of head 1. Head 0 takes twice the second feature, head 1 the first.
    block = {
        "attention.qkv.weight": f64([0, 0], [0, 0], [0, 2], [0, 0], [0, 0], [1, 0]),
        "attention.out.weight": torch.eye(2, dtype=torch.float64),
    }
    torch.testing.assert_close(reference.attention(block, f64([5, 7])[None], config), f64([14, 5])[None])


def test_mixture_weighs_the_two_most_probable_experts() -> None:
    config = replace(CONFIG, hidden=2, experts=3, expert_size=1, experts_per_token=2)
    block = {
        # Probabilities 4/7, 2/7 and 1/7 for the token (1, 0): shares 2/3 and 1/3.
        "feed_forward.router.weight": f64([math.log(4), 0], [math.log(2), 0], [0, 0]),
        "feed_forward.experts.up": f64([[1], [0]], [[1], [0]], [[1], [0]]),
        "feed_forward.experts.down": f64([[1, 0]], [[0, 1]], [[100, 100]]),
    }
    silu_of_1 = 1 / (1 + math.exp(-1))
    expected = f64(silu_of_1 * 2 / 3, silu_of_1 / 3)[None, None]
    torch.testing.assert_close(reference.mixture_of_experts(block, f64(1, 0)[None, None], config), expected)


def test_loss_is_the_mean_over_the_labels_that_count() -> None:
    config = replace(CONFIG, layers=0, hidden=2, vocabulary=2, norm_eps=0.0)
    scale = math.log(3) / math.sqrt(
        2
    )  # the norm makes (1, 0) to (sqrt 2, 0): logits (log 3, 0), so 3/4 and 1/4
    weights = {
        "embedding.tokens.weight": f64([1, 0], [0, 1]),
        "embedding.positions.weight": torch.zeros(3, 2, dtype=torch.float64),
        "head.norm.weight": f64(1, 1),
        "head.logits.weight": f64([scale, 0], [0, 0]),
    }
    batch = Batch(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, IGNORED]]))
    loss = reference.mean_loss(weights, batch, config)
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


@pytest.mark.parametrize("topology", ["dp=1", "dp=2,ep=2"])
def test_gradient_norm_is_the_slope_along_the_gradient(topology: str) -> None:
    config = replace(TrainConfig.of_plan(MeshPlan.build(topology, 2 if "ep" in topology else 1)), steps=1)
    run = reference.reference_run(config)
    before = initial_weights(config)
    # The first step goes down the gradient, by the learning rate.
    step = {name: before[name] - run.weights[name] for name in before}
    small = 1e-6

    def loss_at(distance: float) -> float:
        weights = {name: before[name] + distance * step[name] / config.learning_rate for name in before}
        return reference.mean_loss(weights, global_batch(config, 0), config).item()

    slope = (loss_at(small) - loss_at(-small)) / (2 * small)
    assert run.grad_norms[0] == pytest.approx(math.sqrt(slope), rel=1e-6)
    assert run.losses[0] == pytest.approx(loss_at(0), rel=1e-12)


def test_steps_are_torchs_sgd_with_momentum() -> None:
    weights = {name: value.clone().requires_grad_() for name, value in initial_weights(CONFIG).items()}
    sgd = torch.optim.SGD(weights.values(), lr=CONFIG.learning_rate, momentum=CONFIG.momentum)
    for step in range(CONFIG.steps):
        sgd.zero_grad()
        reference.mean_loss(weights, global_batch(CONFIG, step), CONFIG).backward()
        sgd.step()
    run = reference.reference_run(CONFIG)
    for name, value in weights.items():
        torch.testing.assert_close(run.weights[name], value.detach())


def test_modules_of_the_whole_model_give_the_references_logits() -> None:
    stage = Stage(CONFIG)
    stage.load_state_dict(dict(initial_weights(CONFIG)), assign=True)
    tokens = global_batch(CONFIG, 0).tokens
    expected = reference.logits(initial_weights(CONFIG), tokens, CONFIG)
    torch.testing.assert_close(stage(tokens), expected.flatten(0, 1))


def test_model_without_its_neighbours_has_every_weight_once() -> None:
    config = replace(CONFIG, layers=5, experts=4)
    routing = TokenRouting(None, None)  # type: ignore[arg-type]
    names: list[str] = []
    with torch.device("meta"):
        for stage in range(3):
            names += Stage(config, stage=stage, stages=3, routing=routing).state_dict()
    assert sorted(names) == sorted(initial_weights(config))


def test_initial_weights_depend_on_the_seed_and_the_name() -> None:
    weights = initial_weights(CONFIG)
    others = initial_weights(replace(CONFIG, seed=1))
    assert not any(torch.equal(weights[name], others[name]) for name in weights)
    assert not torch.equal(weights["blocks.0.attention.qkv.weight"], weights["blocks.1.attention.qkv.weight"])
    again = initial_weights(replace(CONFIG, batch=CONFIG.batch + 1))  # not from the cache
    assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize("world_size", range(1, 9))
def test_sizes_divide_over_every_axis(world_size: int) -> None:
    for dims in topologies(world_size):
        plan = MeshPlan.build(dims, world_size)
        config = TrainConfig.of_plan(plan)
        dp, cp, tp, pp, ep = (plan.size(axis) for axis in ("dp", "cp", "tp", "pp", "ep"))
        assert config.heads % tp == config.mlp_size % tp == config.vocabulary % tp == 0
        assert config.batch % (dp * config.microbatches) == 0
        assert config.sequence % (cp * tp) == 0
        assert config.layers >= pp
        assert config.experts % ep == 0
        assert (config.experts > 0) == (ep > 1)


def test_ranks_count_unevenly_many_labels_and_each_at_least_one() -> None:
    config = TrainConfig.of_plan(MeshPlan.build("dp=2,cp=2", 4))
    for step in range(config.steps):
        labels = global_batch(config, step).labels
        counts = [int((part != IGNORED).sum()) for half in labels.chunk(2, 0) for part in half.chunk(2, 1)]
        assert len(set(counts)) > 1
        assert min(counts) > 0
