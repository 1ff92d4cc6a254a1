"""meshlib: parallel sizes to validated device meshes. Importing it does not import torch."""

from meshlib.context import MeshContext, build_mesh_context
from meshlib.dims import ParallelDims
from meshlib.enumeration import topologies
from meshlib.errors import MeshError, NotInMesh, PlanDisagreement, TopologyError, UnknownAxis
from meshlib.offline import OfflineMesh, build_offline_mesh
from meshlib.plan import MeshPlan

__all__ = [
    "MeshContext",
    "MeshError",
    "MeshPlan",
    "NotInMesh",
    "OfflineMesh",
    "ParallelDims",
    "PlanDisagreement",
    "TopologyError",
    "UnknownAxis",
    "build_mesh_context",
    "build_offline_mesh",
    "topologies",
]
