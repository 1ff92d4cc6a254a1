"""The marker and the options: which topologies a test runs on, under which names."""

from __future__ import annotations

import json
import sys

import pytest


def _ids(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if line.startswith("test_suite.py::")]


def _collect(run_suite, source: str, *options: str) -> list[str]:
    return _ids(run_suite(source, "--collect-only", "-q", *options))


_ONE = """
    import pytest

    @pytest.mark.mesh({mark})
    def test_norm(rank_context):
        pass
"""


@pytest.mark.parametrize(
    ("mark", "names"),
    [
        ("'dp=2,tp=2'", ["test_norm"]),
        ("['dp=2', 'tp=2']", ["test_norm[dp=2]", "test_norm[tp=2]"]),
        ("'dp=2', 'tp=2'", ["test_norm[dp=2]", "test_norm[tp=2]"]),
        ("topologies=['dp=2,tp=2', 'pp=2']", ["test_norm[dp=2,tp=2]", "test_norm[pp=2]"]),
        ("world_sizes=[1, 2], axes=['dp', 'tp']", ["test_norm[dp=1]", "test_norm[dp=2]", "test_norm[tp=2]"]),
        ("world_sizes=range(4, 5), axes={'tp': [2]}", ["test_norm"]),
        ("'tp=2', world_sizes=[2, 4]", ["test_norm[tp=2@2]", "test_norm[tp=2@4]"]),
        ("'tp=2', world_size=8", ["test_norm"]),
    ],
)
def test_ids(mark, names, run_suite):
    assert _collect(run_suite, _ONE.format(mark=mark)) == names


def test_world_sizes_mean_every_topology_and_cover_a_selection(run_suite):
    every = _collect(run_suite, _ONE.format(mark="world_sizes=range(1, 9)"))
    cover = _collect(run_suite, _ONE.format(mark="world_sizes=range(1, 9), cover=2"))
    assert "test_norm[dp=2,tp=2,pp=2]" in every
    assert len(set(every)) == len(every)
    assert set(cover) < set(every)
    assert 8 <= len(cover) < len(every) / 2


def test_classes_modules_and_stacking(run_suite):
    source = """
        import pytest

        pytestmark = pytest.mark.mesh("dp=2", seed=3)

        @pytest.mark.mesh("tp=2", "tp=4")
        class TestClass:
            @pytest.mark.parametrize("n", [1, 2])
            def test_method(self, n, rank_context, mesh_topology):
                assert rank_context.seed == 3
                assert f"tp={rank_context.world_size}" == mesh_topology

            @pytest.mark.mesh("pp=2")
            def test_own(self, mesh_context):
                assert mesh_context.pp_size == 2

        def test_function(rank_context):
            assert rank_context.world_size == 2
    """
    result = run_suite(source, "-v")
    result.assert_outcomes(passed=6)
    names = {name.split(" ")[0] for name in _ids(result)}
    assert names == {
        "TestClass::test_method[tp=2-1]",
        "TestClass::test_method[tp=2-2]",
        "TestClass::test_method[tp=4-1]",
        "TestClass::test_method[tp=4-2]",
        "TestClass::test_own",
        "test_function",
    }


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--mesh-topology=dp=4"], ["test_norm"]),
        (["--mesh-topology=dp=4", "--mesh-topology=tp=2"], ["test_norm[dp=4]", "test_norm[tp=2]"]),
        (["--mesh-world-sizes=2"], ["test_norm[dp=2]", "test_norm[tp=2]"]),
    ],
)
def test_the_command_line_names_other_topologies(options, names, run_suite):
    assert _collect(run_suite, _ONE.format(mark="'dp=2', axes=['dp', 'tp']"[:6]), *options)[:1] == names[:1]
    source = _ONE.format(mark="world_sizes=[8], axes=['dp', 'tp']")
    assert _collect(run_suite, source, *options) == names


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("'dp=3,tp=2,dp_replicate=4'", "*dp_replicate*"),
        ("'dq=3'", "*dq*"),
        ("", "*names no topology; write @pytest.mark.mesh('dp=2,tp=2')*"),
        ("'dp=2', backend='mpi'", "*backend 'mpi' is unknown; known are fake, gloo*"),
        ("'dp=2', colour=3", "*@pytest.mark.mesh has no colour; it takes*"),
        ("'dp=2', timeout=-1", "*timeout must be a positive*"),
        ("'dp=2', seed=1.5", "*seed must be a whole number*"),
        ("4", "*takes topologies such as 'dp=2,tp=2', got int: 4*"),
        ("world_sizes=[3], axes={'tp': [2]}", "*no topology*"),
    ],
)
def test_a_wrong_marker_is_an_error_at_collection(mark, message, run_suite):
    result = run_suite(_ONE.format(mark=mark))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ERROR collecting test_suite.py*", message])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--mesh-topology=dp=2", "--mesh-world-sizes=2"],
            "*--mesh-topology or --mesh-world-sizes, not both*",
        ),
        (["--mesh-world-sizes=x"], "*--mesh-world-sizes: world sizes 'x' can't be read*"),
        (["--mesh-timeout=0"], "*--mesh-timeout must be a positive number*"),
        (["--mesh-seed=-1"], "*--mesh-seed must be from 0*"),
        (["--mesh-show-ranks=a"], "*--mesh-show-ranks 'a' can't be read*"),
    ],
)
def test_a_wrong_option_is_one_line(options, message, run_suite):
    result = run_suite("def test_plain(): pass", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_test_that_needs_another_backend_is_skipped_or_fails(run_suite):
    source = _ONE.format(mark="'dp=2', backend='gloo'")
    result = run_suite(source, "--mesh-backend=fake", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs the gloo backend, and --mesh-backend is fake"])
    strict = run_suite(source, "--mesh-backend=fake", "--mesh-strict")
    strict.assert_outcomes(failed=1)
    nccl = run_suite(_ONE.format(mark="'dp=2'"), "--mesh-backend=nccl", "-rs")
    nccl.assert_outcomes(skipped=1)
    nccl.stdout.fnmatch_lines(["SKIPPED*can't run on nccl: *"])


def test_seed_timeout_and_record(run_suite, pytester):
    source = """
        import pytest, time

        @pytest.mark.mesh("dp=2", seed=1)
        def test_seed(rank_context):
            assert rank_context.seed == 5

        @pytest.mark.mesh("dp=2")
        def test_slow(rank_context):
            while rank_context.rank == 1:
                time.sleep(0.01)
    """
    result = run_suite(source, "--mesh-seed=5", "--mesh-timeout=0.3", "--mesh-record=runs")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*0.3 s*"])
    files = sorted((pytester.path / "runs").iterdir())
    assert [file.name for file in files] == ["test_suite.py-test_seed.json", "test_suite.py-test_slow.json"]
    written = json.loads(files[0].read_text())
    assert written["seed"] == 5
    assert written["topology"] == "dp=2"
    assert written["verdict"]["kind"] == "passed"


def test_selection_by_name_and_first_failure(run_suite):
    source = """
        import pytest

        @pytest.mark.mesh("dp=2", "tp=2")
        def test_a(rank_context):
            assert rank_context.rank == 0

        @pytest.mark.mesh("dp=2")
        def test_b():
            pass
    """
    run_suite(source, "-k", "test_a and tp").assert_outcomes(failed=1, deselected=2)
    run_suite(source, "-x").assert_outcomes(failed=1)


def test_a_run_without_mesh_tests_imports_no_torch(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_plain():
            assert "torch" not in sys.modules
            assert "numpy" not in sys.modules
            assert "meshsim.pytest_plugin" in sys.modules
        """
    )
    # They import NumPy.
    off = [word for name in ("hypothesispytest", "randomly") for word in ("-p", f"no:{name}")]
    pytester.runpytest_subprocess(*off, timeout=60).assert_outcomes(passed=1)
    assert sys.modules["meshsim.pytest_plugin"]


def test_a_parametrised_lock_is_refused_at_collection(run_suite, backend):
    result = run_suite(
        """
        import pytest, threading

        @pytest.mark.mesh("dp=2")
        @pytest.mark.parametrize("lock", [threading.Lock()])
        def test_refused(lock):
            pass
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR collecting*", "*parameter 'lock' is a _thread.lock*@meshsim.rank_fixture*"]
    )


def test_a_body_that_cannot_be_sent_is_refused_at_collection(run_suite):
    result = run_suite(
        """
        import pytest, threading

        guard = threading.Lock()

        @pytest.mark.mesh("dp=2", backend="gloo")
        def test_refused():
            with guard:
                pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ERROR collecting*", "*global variable 'guard' is a _thread.lock*"])
    assert "can't pickle local object" not in result.stdout.str()
