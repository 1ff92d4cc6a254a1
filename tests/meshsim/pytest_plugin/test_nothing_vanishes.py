"""The ledger, and JUnit files of jobs that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from xml.etree import ElementTree

from meshsim.pytest_plugin.ledger import main

_SUITE = """
    import pytest

    @pytest.mark.mesh("dp=2", "tp=2")
    def test_runs():
        pass

    @pytest.mark.mesh("dp=2", backend="gloo")
    def test_needs_gloo():
        pass

    def test_plain():
        pass
"""


def test_what_never_ran_is_printed_with_the_reason(run_suite, pytester):
    result = run_suite(_SUITE, "--mesh-backend=fake", "--mesh-ledger=ledger.json", "-k", "not tp")
    result.assert_outcomes(passed=2, skipped=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "*mesh tests that never ran*",
            "1 never ran: *",
            "  test_suite.py::*on *, fake",
        ]
    )
    entries = json.loads((pytester.path / "ledger.json").read_text())["entries"]
    assert entries == [
        [
            "test_suite.py::test_needs_gloo",
            "dp=2",
            "fake",
            "needs the gloo backend, and --mesh-backend is fake",
        ],
        ["test_suite.py::test_runs[dp=2]", "dp=2", "fake", "passed"],
        ["test_suite.py::test_runs[tp=2]", "tp=2", "fake", "deselected"],
    ]


def test_nothing_is_printed_when_all_ran(run_suite):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=2")
        def test_runs():
            pass
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*never ran*")


def test_strict_fails_a_session_in_which_a_test_skips(run_suite):
    suite = """
        import pytest

        @pytest.mark.mesh("dp=2")
        def test_skips():
            pytest.skip("not today")
    """
    assert run_suite(suite).ret == 0
    assert run_suite(suite, "--mesh-strict").ret == 1


def test_ledgers_of_several_jobs_are_merged(run_suite, pytester, capsys):
    run_suite(_SUITE, "--mesh-backend=fake", "--mesh-ledger=a.json", "-k", "not tp")
    run_suite(_SUITE, "--mesh-backend=fake", "--mesh-ledger=b.json", "-k", "tp and not gloo")
    capsys.readouterr()
    assert main(["a.json", "b.json"]) == 1
    out = capsys.readouterr().out
    assert "1 never ran: needs the gloo backend" in out
    assert "test_runs" not in out
    assert "2 of 3 ran" in out
    assert main(["missing.json"]) == 2
    assert main([]) == 2


def test_junit_is_whole_up_to_the_last_finished_test(pytester):
    pytester.makepyfile(
        test_suite="""
        import os, signal, pytest

        @pytest.mark.mesh("dp=2")
        def test_first(rank_context):
            assert rank_context.rank == 0

        def test_second():
            pass

        def test_killed():
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "--junit-xml=out.xml",
    ]
    run = subprocess.run(command, capture_output=True, timeout=120, check=False, cwd=pytester.path)
    assert run.returncode == -signal.SIGKILL
    root = ElementTree.parse(os.path.join(pytester.path, "out.xml")).getroot()
    cases = list(root.iter("testcase"))
    assert [case.get("name") for case in cases] == ["test_first", "test_second"]
    assert "rank 1" in (cases[0].find("failure").get("message") or "")
