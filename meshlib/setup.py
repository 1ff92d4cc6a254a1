"""The container that training code passes around: the mesh context and the choices that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshlib.context import MeshContext
from meshlib.errors import TopologyError
from meshlib.process_group import default_device_type

_SIZES = ("tp_size", "cp_size", "pp_size", "ep_size")
_FLAGS = ("sequence_parallel", "loss_parallel")


@dataclass
class DistributedSetup:
    """A mesh context with the strategy, pipeline, expert, checkpointing and precision settings that belong
    to it.

    meshlib fills ``mesh_context``; the rest is the caller's own.
    """

    mesh_context: MeshContext | None = None
    strategy_config: Any = None
    pipeline_config: Any = None
    moe_parallel_config: Any = None
    activation_checkpointing: Any = None
    plan_overrides: dict[str, Any] = field(default_factory=dict)
    module_replacements: dict[Any, Any] = field(default_factory=dict)
    low_precision_config: Any = None
    fp32_main_params: bool = False


def build_distributed_setup(
    accelerator: Any,
    *,
    dp_shard_size: int | None,
    dp_replicate_size: int | None,
    world_size: int,
    edp_shard_size: int | None = 1,
    device_type: str | None = None,
) -> DistributedSetup:
    """A setup with a bound mesh context; every rank of the world calls it.

    ``accelerator`` is an object or a mapping that holds ``tp_size, cp_size, pp_size, ep_size`` (1 where it
    has none), ``sequence_parallel`` and ``loss_parallel`` (False; text such as
    ``"false"`` is refused). Without a process group the meshes are
    offline ones.
    """
    if accelerator is None or isinstance(accelerator, str | int | float):
        raise TopologyError(
            f"accelerator must be an object or a mapping with {', '.join((*_SIZES, *_FLAGS))}, "
            f"got {accelerator!r}"
        )
    settings: dict[str, Any] = {name: _read(accelerator, name, 1) for name in _SIZES}
    settings.update({name: _read(accelerator, name, False) for name in _FLAGS})
    context = MeshContext(
        dp_replicate_size=dp_replicate_size,
        dp_shard_size=dp_shard_size,
        edp_shard_size=edp_shard_size,
        **settings,
    )
    context.build_meshes(device_type or default_device_type(), world_size)
    return DistributedSetup(mesh_context=context)


def _read(source: Any, name: str, default: Any) -> Any:
    found = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    return default if found is None else found
