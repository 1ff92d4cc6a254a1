"""``DistributedTest`` and ``DistributedFixture``."""

from __future__ import annotations


def test_world_size_by_class_list_and_marker(run_suite, backend):
    result = run_suite(
        """
        import pytest, torch, torch.distributed as dist
        from meshsim.compat import DistributedTest

        class TestSizes(DistributedTest):
            world_size = [2, 3]
            reuse_dist_env = True

            @pytest.mark.parametrize("n", [1, 2])
            def test_each(self, n, tmp_path):
                assert dist.get_world_size() == self.world_size
                x = torch.ones(1)
                dist.all_reduce(x)
                assert x.item() == self.world_size

            @pytest.mark.world_size(4)
            def test_four(self):
                assert dist.get_world_size() == 4
        """,
        f"--mesh-backend={backend}",
        "-v",
        "--strict-markers",
    )
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(
        ["*TestSizes::test_each[[]dp=2-1[]] PASSED*", "*TestSizes::test_each[[]dp=3-1[]] PASSED*"]
    )
    result.stdout.fnmatch_lines(["*TestSizes::test_four PASSED*"])


def test_a_failing_rank_is_shown(run_suite, backend):
    result = run_suite(
        """
        import torch.distributed as dist
        from meshsim.compat import DistributedTest

        class TestFails(DistributedTest):
            world_size = 3

            def test_odd(self):
                assert dist.get_rank() != 2
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["dp=3, 3 ranks on *: rank 2 raised AssertionError*", "E * assert 2 != 2"])


def test_fixtures_run_on_their_own_number_of_ranks(run_suite, backend):
    result = run_suite(
        """
        import os, pytest, torch, torch.distributed as dist
        from meshsim.compat import DistributedFixture, DistributedTest

        class saved(DistributedFixture):
            world_size = 3

            def run(self, class_tmpdir, word):
                path = os.path.join(class_tmpdir, f"{word}{dist.get_rank()}")
                torch.save(dist.get_world_size(), path)

        class broken(DistributedFixture):
            world_size = 2

            def run(self):
                assert dist.get_rank() == 0

        @pytest.fixture
        def word():
            return "part"

        class TestReads(DistributedTest):
            world_size = 2

            def test_reads(self, saved, class_tmpdir):
                assert sorted(os.listdir(class_tmpdir)) == ["part0", "part1", "part2"]
                assert torch.load(os.path.join(class_tmpdir, "part1")) == 3

            def test_broken(self, broken):
                pass
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["dp=2, 2 ranks on *: rank 1 raised AssertionError*", "E * assert 1 == 0"])


def test_a_suite_that_starts_the_process_group_itself(run_suite, backend):
    result = run_suite(
        """
        import os, pytest, torch, torch.distributed as dist
        from meshsim.compat import DistributedTest

        class TestStarts(DistributedTest):
            world_size = 2
            init_distributed = False

            def test_starts(self):
                assert not dist.is_initialized()
                dist.init_process_group("gloo")
                assert dist.get_rank() == int(os.environ["RANK"])
                x = torch.ones(1)
                dist.all_reduce(x)
                assert x.item() == 2

        class TestWithoutEnvironment(DistributedTest):
            world_size = 2
            init_distributed = False
            set_dist_env = False

            def test_has_none(self):
                assert "RANK" not in os.environ

        class TestAccelerator(DistributedTest):
            world_size = 2
            requires_cuda_env = True

            @pytest.mark.skipif(torch.accelerator.is_available(), reason="there is one")
            def test_skipped(self):
                raise AssertionError
        """,
        f"--mesh-backend={backend}",
        "-rs",
    )
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs an accelerator*"])
