"""Fixtures' values on the ranks: private to each, in every world alike."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("row", ["HARN-12"])
def test_local_functions_lambdas_parameters_and_fixtures(row, run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.fixture(scope="module")
        def base():
            return {"numbers": [1, 2]}

        @pytest.fixture
        def doubled(base, request):
            return [2 * n for n in base["numbers"]]

        def make(limit):
            @pytest.mark.mesh("dp=2")
            @pytest.mark.parametrize("n", [3, 4])
            def test_local(n, doubled, base, rank_context):
                assert n < limit
                assert doubled == [2, 4]
                assert base == {"numbers": [1, 2]}
            return test_local

        test_local = make(limit=5)
        test_lambda = pytest.mark.mesh("dp=2")(lambda rank_context: rank_context.rank)

        class TestClass:
            limit = 7

            def setup_method(self):
                self.found = []

            @pytest.mark.mesh("dp=2")
            def test_method(self, tmp_path, rank_context):
                self.found.append(rank_context.rank)
                assert self.found == [rank_context.rank]
                assert self.limit == 7
                (tmp_path / str(rank_context.rank)).write_text("here")

            @staticmethod
            @pytest.mark.mesh("dp=2")
            def test_static(doubled):
                assert doubled == [2, 4]
        """,
        f"--mesh-backend={backend}",
        "-Wignore::pytest.PytestReturnNotNoneWarning",
    )
    result.assert_outcomes(passed=5)


def test_values_are_private_to_each_rank(run_suite, backend):
    result = run_suite(
        """
        import pytest, torch, torch.distributed as dist

        class Box:
            def __init__(self):
                self.items = []

        @pytest.fixture(scope="session")
        def box():
            return Box()

        @pytest.fixture
        def same(box):
            return box

        @pytest.mark.mesh("dp=3")
        @pytest.mark.parametrize("tensor", [torch.zeros(2)])
        def test_private(box, same, tensor, rank_context):
            box.items.append(rank_context.rank)
            tensor += rank_context.rank
            dist.barrier()
            assert box.items == [rank_context.rank]
            assert tensor.tolist() == [rank_context.rank] * 2
            assert same is box
            assert isinstance(box, Box)

        def test_the_original_is_untouched(box):
            assert box.items == []
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=2)


def test_a_value_that_cannot_be_copied_is_refused_with_its_name(run_suite, backend):
    result = run_suite(
        """
        import pytest, threading

        @pytest.fixture
        def guard():
            return {"inner": threading.Lock()}

        @pytest.mark.mesh("dp=2")
        def test_refused(guard):
            pass

        @pytest.mark.mesh("dp=2")
        def test_next():
            pass
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["fixture 'guard'[[]'inner'[]] is a _thread.lock, which can't be pickled*"])
    text = result.stdout.str()
    assert "@meshsim.rank_fixture" in text
    assert "can't pickle local object" not in text


def test_rank_fixtures(run_suite, backend):
    result = run_suite(
        """
        import pytest, threading
        import meshsim

        @pytest.fixture
        def size():
            return 3

        @meshsim.rank_fixture
        def guard(rank_context, size):
            lock = threading.Lock()
            print("made", rank_context.rank)
            yield lock, [size] * rank_context.rank
            print("torn down", rank_context.rank)

        @meshsim.rank_fixture(params=["a", "b"])
        def named(request, guard):
            return request.param + str(len(guard[1]))

        @meshsim.rank_fixture(autouse=True)
        def always(rank_context):
            print("always", rank_context.rank)

        @pytest.mark.mesh("dp=2")
        def test_made_on_the_rank(named, guard, rank_context):
            with guard[0]:
                assert named in (f"a{rank_context.rank}", f"b{rank_context.rank}")
            print("body")
        """,
        f"--mesh-backend={backend}",
        "-rP",
    )
    result.assert_outcomes(passed=2)
    lines = [line for line in result.outlines if line.startswith("[rank1]")]
    assert lines == [f"[rank1] {word}" for word in ("always 1", "made 1", "body", "torn down 1")] * 2


def test_an_ordinary_fixture_cannot_use_a_rank_fixture(run_suite):
    result = run_suite(
        """
        import pytest

        @pytest.fixture
        def place(rank_context):
            return rank_context.rank

        @pytest.mark.mesh("dp=2")
        def test_refused(place):
            pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E *fixture 'rank_context' exists on the ranks only*@meshsim.rank_fixture"])


def test_rank_fixtures_outside_of_a_mesh_test(run_suite):
    result = run_suite("def test_plain(mesh_context): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'mesh_context' is for mesh tests: mark *@pytest.mark.mesh(*"])


def test_monkeypatch_is_a_ranks_own(run_suite, backend):
    result = run_suite(
        """
        import os, sys, pytest, torch.distributed as dist

        class Thing:
            value = "plain"

        table = {"a": 0}

        @pytest.mark.mesh("dp=3")
        def test_patches(monkeypatch, rank_context, tmp_path):
            rank = rank_context.rank
            monkeypatch.setattr(Thing, "value", rank)
            monkeypatch.setattr(Thing, "new", rank, raising=False)
            monkeypatch.setitem(table, "a", rank)
            monkeypatch.delitem(table, "b", raising=False)
            monkeypatch.setenv("MINE", str(rank))
            monkeypatch.syspath_prepend(f"/only/{rank}")
            for _ in range(3):
                dist.barrier()
                assert (Thing.value, Thing.new, table["a"]) == (rank, rank, rank)
                assert os.environ["MINE"] == str(rank)
                assert sys.path[0] == f"/only/{rank}"

        @pytest.mark.mesh("dp=3")
        def test_nothing_is_left(rank_context):
            assert Thing.value == "plain"
            assert not hasattr(Thing, "new")
            assert table == {"a": 0}
            assert "MINE" not in os.environ
            assert not any(path.startswith("/only") for path in sys.path)

        def test_nothing_is_left_here():
            test_nothing_is_left(None)
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=3)


def test_capsys_and_caplog_are_a_ranks_own(run_suite, backend):
    result = run_suite(
        """
        import logging, sys, pytest, torch.distributed as dist

        log = logging.getLogger("mine")

        @pytest.mark.mesh("dp=3")
        def test_captures(capsys, caplog, rank_context):
            rank = rank_context.rank
            caplog.set_level(logging.INFO if rank else logging.ERROR)
            print("out", rank)
            print("err", rank, file=sys.stderr)
            dist.barrier()
            log.info("info %d", rank)
            dist.barrier()
            assert capsys.readouterr() == (f"out {rank}\\n", f"err {rank}\\n")
            assert caplog.messages == ([f"info {rank}"] if rank else [])
            with capsys.disabled():
                print("passed on", rank)
            print("unread", rank)

        def test_levels_are_back():
            assert logging.getLogger().level == logging.WARNING
        """,
        f"--mesh-backend={backend}",
        "-rP",
    )
    result.assert_outcomes(passed=2)
    text = result.stdout.str()
    for rank in range(3):
        assert f"[rank{rank}] passed on {rank}" in text
        assert f"[rank{rank}] unread {rank}" in text
        assert f"[rank{rank}] out" not in text


def test_capfd_says_why_not(run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=2")
        def test_refused(capfd):
            pass
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["fixture 'capfd' can't work on the ranks: *use capsys*"])


def test_request_on_a_rank(run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.fixture
        def number():
            return 5

        @pytest.mark.mesh("dp=2")
        @pytest.mark.parametrize("n", [1])
        def test_asks(request, number, n, pytestconfig):
            assert request.node.name == "test_asks[1]"
            assert request.getfixturevalue("number") == 5
            assert request.config.getoption("--mesh-strict") is False
            assert pytestconfig.getoption("tbstyle") == "auto"
            request.addfinalizer(lambda: print("finalized"))
            with pytest.raises(AttributeError, match="request has no 'session' on a rank"):
                request.session
        """,
        f"--mesh-backend={backend}",
        "-rP",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["[[]rank0[]] finalized", "[[]rank1[]] finalized"])


def test_warnings_on_ranks(run_suite, backend):
    result = run_suite(
        """
        import warnings, pytest, torch.distributed as dist

        @pytest.mark.mesh("dp=3")
        def test_expected(rank_context, recwarn):
            with pytest.warns(UserWarning, match=f"from {rank_context.rank}") as caught:
                dist.barrier()
                warnings.warn(f"from {rank_context.rank}")
                dist.barrier()
            assert len(caught) == 1
            warnings.warn("noticed")
            assert [str(w.message) for w in recwarn] == ["noticed"]

        @pytest.mark.mesh("dp=3")
        def test_reported_once():
            warnings.warn("to be shown")

        @pytest.mark.mesh("dp=3")
        @pytest.mark.filterwarnings("error:strict")
        def test_filtered():
            with pytest.raises(RuntimeWarning, match="strict"):
                warnings.warn("strict", RuntimeWarning)
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines(["test_suite.py::test_reported_once", "*UserWarning: to be shown"])


def test_properties_are_recorded_once(run_suite, backend, pytester):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=3")
        def test_records(record_property, rank_context):
            record_property("loss", 0.5)
            record_property("rank", rank_context.rank)
        """,
        f"--mesh-backend={backend}",
        "--junit-xml=out.xml",
    )
    result.assert_outcomes(passed=1)
    text = (pytester.path / "out.xml").read_text()
    assert text.count('name="loss"') == 1
    assert text.count('name="rank"') == 3


def test_subtests_are_reported_together(run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=3")
        def test_parts(subtests, rank_context):
            for part in range(3):
                with subtests.test("part", part=part):
                    assert part != 1 or rank_context.rank != 2
        """,
        f"--mesh-backend={backend}",
    )
    result.stdout.fnmatch_lines(
        ["SUBFAILED[[]part[]] (part=1) test_suite.py::test_parts - rank 2: AssertionError: *"]
    )
    assert result.stdout.str().count("SUBFAILED") == 1


def test_coroutines(run_suite, backend):
    result = run_suite(
        """
        import asyncio, pytest

        @pytest.mark.mesh("dp=2")
        async def test_async(rank_context):
            await asyncio.sleep(0)
            assert rank_context.rank < 1
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank 1 raised AssertionError*"])


def test_raises_and_approx(run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=2")
        def test_usual_helpers():
            with pytest.raises(ZeroDivisionError, match="division"):
                1 / 0
            assert 0.1 + 0.2 == pytest.approx(0.3)
            pytest.importorskip("no_such_module_at_all")
        """,
        f"--mesh-backend={backend}",
        "-rs",
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*could not import 'no_such_module_at_all'*"])
