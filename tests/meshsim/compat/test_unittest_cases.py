"""The unittest classes: under pytest, and under unittest itself."""

from __future__ import annotations

import subprocess
import sys

_SUITE = """
import os
import torch, torch.distributed as dist
from meshsim.compat import (
    DTensorTestBase, MeshTestCase, MultiProcessTestCase, MultiThreadedTestCase, run_tests,
    skip_if_lt_x_gpu, with_comms,
)

class TestProcesses(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def tearDown(self):
        super().tearDown()
        try:
            os.remove(self.file_name)
        except OSError:
            pass

    def test_file_store(self):
        self.assertFalse(dist.is_initialized())
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        x = torch.ones(2) * self.rank
        dist.all_reduce(x)
        self.assertEqual(x, torch.ones(2))
        dist.destroy_process_group()

    @skip_if_lt_x_gpu(1000)
    def test_big_machine(self):
        raise AssertionError

class TestThreads(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 3

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self):
        self.ready = True

    def test_group(self):
        self.assertTrue(self.ready)
        self.assertEqual(self.rank, dist.get_rank())
        dist.barrier()

class TestDTensor(DTensorTestBase):
    @with_comms
    def test_shards(self):
        from torch.distributed.tensor import Shard, distribute_tensor

        whole = torch.arange(8.0)
        sharded = distribute_tensor(whole, self.build_device_mesh(), [Shard(0)])
        self.assertEqual(sharded.to_local(), whole[2 * self.rank : 2 * self.rank + 2])
        self.assertEqual(sharded.full_tensor(), whole)

    @with_comms()
    def test_subtests(self):
        seen = []
        self.run_subtests({"a": [1, 2], "b": [3]}, lambda a, b: seen.append((a, b)))
        self.assertEqual(seen, [(1, 3), (2, 3)])

class TestMesh(MeshTestCase):
    topology = "dp=2,tp=2"

    def setUp(self):
        self.where = self.mesh_context.tp_rank

    def test_mesh(self):
        self.assertEqual(self.where, self.rank % 2)

    def test_odd(self):
        self.assertEqual(torch.tensor([self.rank // 3]), torch.tensor([0]))

if __name__ == "__main__":
    run_tests()
"""


def test_under_pytest(run_suite, backend):
    result = run_suite(_SUITE, f"--mesh-backend={backend}", "-rs")
    result.assert_outcomes(passed=5, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "dp=2,tp=2, 4 ranks on *: rank 3 raised AssertionError*",
            ">       self.assertEqual(torch.tensor([[]self.rank // 3[]]), torch.tensor([[]0[]]))",
            "E * Tensor-likes are not equal!",
        ]
    )
    result.stdout.fnmatch_lines(["SKIPPED*needs 1000 accelerators, have *"])


def test_under_unittest(tmp_path):
    (tmp_path / "test_suite.py").write_text(_SUITE)
    run = subprocess.run(
        [sys.executable, "-m", "unittest", "test_suite"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1
    assert "FAILED (failures=1, skipped=1)" in run.stderr
    assert "rank 3 raised AssertionError" in run.stderr
