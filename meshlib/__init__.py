"""meshlib: parallel sizes to validated device meshes. Importing it does not import torch."""

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
