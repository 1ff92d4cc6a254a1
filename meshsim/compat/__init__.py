"""Base classes with the interfaces of harnesses that test suites have copied from project to project.

A suite that was written for one of them runs here after changing its import:

- ``DistributedTest`` and ``DistributedFixture``, as DeepSpeed-style suites use them;
- ``MultiProcessTestCase``, ``MultiThreadedTestCase``, ``DTensorTestBase`` with ``with_comms``, and the skips
  around them, as torch-style suites use them;
- ``MeshTestCase``, a ``unittest.TestCase`` whose test methods run on every rank of its ``topology``.

All of them run in the world that ``--mesh-backend`` names: by default in this process.
"""

from __future__ import annotations

from meshsim.compat.distributed_test import DistributedFixture, DistributedTest
from meshsim.compat.dtensor import DEVICE_TYPE, NUM_DEVICES, DTensorTestBase, with_comms
from meshsim.compat.skips import (
    requires_accelerator_dist_backend,
    requires_gloo,
    requires_nccl,
    skip_if_lt_x_gpu,
    skip_unless_torch_gpu,
)
from meshsim.compat.unittest_cases import (
    MeshTestCase,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    run_tests,
)

__all__ = [
    "DEVICE_TYPE",
    "NUM_DEVICES",
    "DTensorTestBase",
    "DistributedFixture",
    "DistributedTest",
    "MeshTestCase",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "requires_accelerator_dist_backend",
    "requires_gloo",
    "requires_nccl",
    "run_tests",
    "skip_if_lt_x_gpu",
    "skip_unless_torch_gpu",
    "with_comms",
]
