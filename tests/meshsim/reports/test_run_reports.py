"""JUnit XML, Chrome traces, and text of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from meshsim.report import RankFailure, RankReport, RankState
from meshsim.reports.chrome_trace import chrome_trace
from meshsim.reports.failure_text import failure_text, rank_table
from meshsim.reports.junit import junit_xml
from meshsim.reports.tables import aligned, outcome_line, results_table
from meshsim.result import RunResult
from meshsim.trace import TraceEvent


def test_junit_counts_and_explains(passed: RunResult, failed: RunResult, not_run: RunResult) -> None:
    suite = ElementTree.fromstring(junit_xml([passed, failed, not_run]))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "3", "failures": "1", "errors": "0", "skipped": "1", "time": "3.000"}
    cases = list(suite)
    assert [case.get("name") for case in cases] == [
        "train.py::step[dp=2]",
        "train.py::step[tp=2]",
        "train.py::step[pp=2]",
    ]
    assert not list(cases[0])
    failure = cases[1][0]
    assert (failure.tag, failure.get("type")) == ("failure", "raised")
    assert "rank 1 raised ValueError: wrong� <loss>" in (failure.text or "")  # no NUL in XML
    assert (cases[2][0].tag, cases[2][0].get("message")) == ("skipped", "pp isn't covered yet")


def test_a_chrome_trace_has_a_process_for_each_rank_and_a_slice_for_each_call(
    passed: RunResult, failed: RunResult
) -> None:
    data = chrome_trace([passed, failed])
    json.dumps(data, allow_nan=False)
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert names == {
        0: "dp=2 fake rank 0",
        1: "dp=2 fake rank 1",
        2: "tp=2 gloo rank 0",
        3: "tp=2 gloo rank 1",
    }
    slices = [(e["pid"], e["ts"], e["dur"]) for e in data["traceEvents"] if e["ph"] == "X"]
    # The second run begins when the first has ended, after 1 s; its open call lasts until its end, 2 s later.
    assert slices == [(0, 5e5, 2.5e5), (1, 5e5, 2.5e5), (2, 1.5e6, 1.5e6)]
    first = next(e for e in data["traceEvents"] if e["ph"] == "X")
    assert (first["name"], first["args"]["group"], first["args"]["line"]) == (
        "all_reduce",
        [0, 1],
        "/home/me/train.py:12",
    )


def test_a_failure_names_the_run_the_verdict_the_ranks_and_their_output(failed: RunResult) -> None:
    text = failure_text(failed)
    assert text.splitlines()[0] == "FAILED tp=2, 2 ranks on gloo, seed 3"
    assert "rank 1 raised ValueError" in text
    assert "[rank1] step 1\n[rank1] step 2" in text
    assert "all well" not in text  # rank 0 merely waits


def test_ranks_that_ended_alike_share_a_line(make_call: Callable[..., TraceEvent]) -> None:
    def waiting(rank: int) -> RankReport:
        return RankReport(rank, RankState.BLOCKED, pending=make_call(rank, (0, 1, 2)))

    ranks = [waiting(0), waiting(1), RankReport(2, RankState.EXITED, exit_code=3)]
    ranks.append(RankReport(3, RankState.KILLED, signal="SIGSEGV"))
    lines = [line.split() for line in rank_table(ranks).splitlines()[1:]]
    assert lines == [
        ["0,", "1", "blocked", "in", "all_reduce", "on", "dp", "(0,", "1,", "2)", "train.py:12"],
        ["2", "exited", "exit", "code", "3"],
        ["3", "killed", "SIGSEGV"],
    ]


def test_ranks_whose_errors_differ_at_the_end_are_kept_apart() -> None:
    ranks = [
        RankReport(rank, RankState.RAISED, failure=RankFailure("ValueError", "x" * 200 + end, ""))
        for rank, end in enumerate("aab")
    ]
    table = rank_table(ranks).splitlines()
    assert [line.split()[0] for line in table[1:]] == ["0,", "2"]
    assert all(len(line) < 120 for line in table)


def test_the_table_counts_outcomes(passed: RunResult, failed: RunResult, not_run: RunResult) -> None:
    lines = results_table([passed, failed, not_run]).splitlines()
    assert lines[1].split() == ["2", "dp=2", "fake", "passed,", "1", "warning", "1.00"]
    assert lines[2].split() == ["2", "tp=2", "gloo", "raised", "2.00"]
    assert lines[3].split() == ["2", "pp=2", "fake", "not", "run:", "pp", "isn't", "covered", "yet", "-"]
    assert lines[4] == "3 runs: 1 passed, 1 failed, 1 not run"
    assert outcome_line([passed]) == "1 run: 1 passed"
    assert outcome_line([replace(passed)] * 2) == "2 runs: 2 passed"
    assert outcome_line([]) == "0 runs: none"


def test_columns_are_aligned() -> None:
    rows: list[tuple[Any, ...]] = [("1", "a"), ("22", "bbb")]
    assert aligned(("n", "name"), rows, right=(0,)) == " n  name\n 1  a\n22  bbb"
