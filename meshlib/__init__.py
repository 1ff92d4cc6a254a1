"""meshlib: parallel sizes to validated device meshes.

Importing it imports neither torch nor the parts that aren't used: each name is loaded when it is first
asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshlib.context import MeshContext, build_mesh_context
    from meshlib.dims import ParallelDims
    from meshlib.enumeration import topologies
    from meshlib.errors import MeshError, NotInMesh, PlanDisagreement, TopologyError, UnknownAxis
    from meshlib.init_mesh import init_device_mesh
    from meshlib.offline import OfflineMesh, build_offline_mesh
    from meshlib.plan import MeshPlan
    from meshlib.setup import DistributedSetup, build_distributed_setup

__all__ = [
    "DistributedSetup",
    "MeshContext",
    "MeshError",
    "MeshPlan",
    "NotInMesh",
    "OfflineMesh",
    "ParallelDims",
    "PlanDisagreement",
    "TopologyError",
    "UnknownAxis",
    "build_distributed_setup",
    "build_mesh_context",
    "build_offline_mesh",
    "init_device_mesh",
    "topologies",
]

_HOMES = {
    "DistributedSetup": "setup",
    "MeshContext": "context",
    "MeshError": "errors",
    "MeshPlan": "plan",
    "NotInMesh": "errors",
    "OfflineMesh": "offline",
    "ParallelDims": "dims",
    "PlanDisagreement": "errors",
    "TopologyError": "errors",
    "UnknownAxis": "errors",
    "build_distributed_setup": "setup",
    "build_mesh_context": "context",
    "build_offline_mesh": "offline",
    "init_device_mesh": "init_mesh",
    "topologies": "enumeration",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"meshlib.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
