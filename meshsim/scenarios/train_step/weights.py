"""The model's initial weights, the same whatever the topology."""

from __future__ import annotations

import math
from functools import lru_cache
from types import MappingProxyType

import torch

from meshsim.scenarios.seeding import seeded_generator
from meshsim.scenarios.train_step.config import TrainConfig


@lru_cache(maxsize=64)
def initial_weights(config: TrainConfig) -> MappingProxyType[str, torch.Tensor]:
    """All weights of the whole model by name. They are shared: clone before changing one.

    Each is drawn from a generator seeded with its name, so a pipeline stage that holds only some of them
    gets the same ones.
    """
    return MappingProxyType(
        {name: _draw(name, shape, config) for name, shape in _weight_shapes(config).items()}
    )


def _weight_shapes(config: TrainConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden, config.heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.tokens.weight": (config.vocabulary, hidden),
        "embedding.positions.weight": (config.sequence, hidden),
    }
    for layer in range(config.layers):
        block = {
            "attention_norm.weight": (hidden,),
            "attention.qkv.weight": (3 * inner, hidden),
            "attention.out.weight": (hidden, inner),
            "feed_forward_norm.weight": (hidden,),
        }
        block |= _moe_shapes(config) if config.experts else _mlp_shapes(config)
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    shapes["head.norm.weight"] = (hidden,)
    shapes["head.logits.weight"] = (config.vocabulary, hidden)
    return shapes


def _mlp_shapes(config: TrainConfig) -> dict[str, tuple[int, ...]]:
    return {
        "feed_forward.up.weight": (config.mlp_size, config.hidden),
        "feed_forward.down.weight": (config.hidden, config.mlp_size),
        "feed_forward.down.bias": (config.hidden,),
    }


def _moe_shapes(config: TrainConfig) -> dict[str, tuple[int, ...]]:
    return {
        "feed_forward.router.weight": (config.experts, config.hidden),
        "feed_forward.experts.up": (config.experts, config.hidden, config.expert_size),
        "feed_forward.experts.down": (config.experts, config.expert_size, config.hidden),
    }


def _draw(name: str, shape: tuple[int, ...], config: TrainConfig) -> torch.Tensor:
    generator = seeded_generator(config.seed, name)
    values = torch.randn(shape, generator=generator, dtype=config.dtype)
    if "norm" in name:
        return 1 + 0.1 * values
    return values if "embedding" in name else values / math.sqrt(config.hidden)
