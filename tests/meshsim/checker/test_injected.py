"""Faults that never fired: which, on which ranks, and what calls there were."""

from __future__ import annotations

from checker_traces import call, raised, returned, world

from meshlib import MeshPlan, ParallelDims
from meshsim.checker.judge import judge
from meshsim.faults import FaultInjector, parse_faults
from meshsim.verdict import Severity, VerdictKind

PLAN = MeshPlan.build(ParallelDims.parse("dp=2,tp=2"), 4)


def warnings(faults, *reports):
    return [
        finding.summary
        for finding in judge(PLAN, world(*reports), faults=parse_faults(faults, PLAN)).warnings
    ]


def everywhere(*ops):
    return [returned(rank, *(call(rank, op) for op in ops)) for rank in range(4)]


def test_an_operation_that_the_rank_never_calls():
    assert warnings(["rank=1:crash@broadcast"], *everywhere("all_reduce", "barrier")) == [
        "fault rank=1:crash@broadcast never fired on rank 1: rank 1 made no broadcast calls; "
        "they called all_reduce, barrier"
    ]


def test_a_count_that_the_rank_never_comes_to():
    assert warnings(["rank=1:nan@all_reduce#5"], *everywhere("all_reduce", "broadcast", "all_reduce")) == [
        "fault rank=1:nan@all_reduce#5 never fired on rank 1: rank 1 made 2 all_reduce calls"
    ]


def test_ranks_with_different_numbers_of_calls():
    reports = [returned(r, *(call(r) for _ in range(1 + (r > 1)))) for r in range(4)]
    assert warnings(["tp=1:hang@*#4"], *reports) == [
        "fault tp=1:hang@*#4 never fired on ranks 1, 3: rank 1 made 1 communication call, "
        "rank 3 made 2 communication calls"
    ]


def test_calls_of_meshsim_itself_are_not_counted():
    reports = [returned(r, call(r, internal=True), call(r)) for r in range(4)]
    (text,) = warnings(["rank=0:skip@all_reduce#2"], *reports)
    assert text.endswith("rank 0 made 1 all_reduce call")


def test_only_the_ranks_on_which_it_did_not_fire():
    faults = parse_faults(["tp=1:delay=0.1@all_reduce"], PLAN)
    reports = everywhere("all_reduce")
    FaultInjector(faults, 1, PLAN).before(reports[1].trace[0])
    found = judge(PLAN, world(*reports), faults=faults)
    assert found.ok
    (warning,) = found.warnings
    assert (warning.kind, warning.ranks, warning.severity) == (
        VerdictKind.FAULT_NOT_FIRED,
        (3,),
        Severity.WARNING,
    )


def test_damage_without_a_tensor():
    (text,) = warnings(["rank=0:nan@barrier"], *everywhere("barrier"))
    assert text.endswith("rank 0 made 1 barrier call, none of them one at which nan has a tensor to damage")


def test_a_failed_run_says_it_too():
    reports = [raised(0), *everywhere("all_reduce")[1:]]
    assert len(warnings(["rank=2:crash@broadcast"], *reports)) == 1


def test_no_faults_no_warnings():
    assert warnings([], *everywhere("all_reduce")) == []
