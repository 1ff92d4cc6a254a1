"""Which of several things that are wrong heads the verdict, and whom it names."""

from __future__ import annotations

import json

import pytest
from checker_traces import WORLD, at, blocked, call, lost_its_peer, raised, returned, stuck, world

from meshsim.checker.judge import judge
from meshsim.faults import FAULT_NOTE
from meshsim.report import RankReport, RankState
from meshsim.trace import CallState
from meshsim.verdict import Finding, Severity, VerdictKind

TP = {"group": (0, 1), "axis": "tp", "group_name": "1"}


def verdict(*ranks, profile=None, backend="gloo", **facts):
    return judge(None, world(*ranks, **facts), profile=profile, backend=backend)


def ended(rank, state, *events, at_second=1.0, **facts):
    return RankReport(rank, state, trace=list(events), ended=at_second, **facts)


def test_all_returned():
    found = verdict(*(returned(r, call(r)) for r in WORLD))
    assert (found.kind, found.ok, found.ranks, found.waiting) == (VerdictKind.PASSED, True, (), ())
    assert found.summary == "all 4 ranks returned"


@pytest.mark.parametrize("state", [s for s in RankState if s is not RankState.RETURNED])
def test_there_is_no_false_pass(state):
    """Whatever else a rank did than return, and if nothing more is known."""
    found = verdict(returned(0), ended(1, state))
    assert not found.ok
    assert 1 in found.ranks


class TestFirstCause:
    def test_a_rank_that_raised_heads_before_those_who_wait(self):
        found = verdict(*(blocked(r, call(r)) for r in (0, 1, 3)), raised(2))
        assert (found.kind, found.ranks, found.waiting) == (VerdictKind.RAISED, (2,), (0, 1, 3))
        assert found.summary == (
            "rank 2 raised ValueError at train.py:99: boom; rank 2 never called all_reduce number 1 on "
            "world (0, 1, 2, 3): ranks 0, 1, 3 wait at train.py:10; rank 2 had made no call before"
        )

    def test_a_rank_that_raised_heads_before_those_who_lost_it(self):
        found = verdict(*(lost_its_peer(r, call(r), ended=0.5) for r in (0, 1, 3)), raised(2, ended=0.9))
        assert (found.kind, found.ranks, found.waiting) == (VerdictKind.RAISED, (2,), (0, 1, 3))
        own, lost = found.details["failures"]
        assert (own["ranks"], own["type"], own["peer_lost"]) == ("2", "ValueError", False)
        assert (lost["ranks"], lost["count"], lost["peer_lost"]) == ("0, 1, 3", 3, True)

    def test_errors_out_of_communication_are_consequences_even_when_unknown(self):
        odd = call(0, state=CallState.FAILED)
        found = verdict(raised(0, odd, type="RuntimeError", message="[enforce fail] x", ended=0.1), raised(1))
        assert (found.ranks, found.waiting) == ((1,), (0,))

    def test_a_crash_before_those_who_lost_it(self):
        crashed = ended(
            1, RankState.KILLED, signal="SIGSEGV", stderr="Fatal\n", stack="File x", at_second=9.0
        )
        found = verdict(lost_its_peer(0, call(0), ended=0.1), crashed)
        assert (found.kind, found.ranks, found.waiting) == (VerdictKind.KILLED, (1,), (0,))
        assert found.summary.startswith(
            "rank 1 was killed by SIGSEGV; rank 1 never called all_reduce number 1"
        )
        assert (found.details["stderr"], found.details["stack"]) == ("Fatal", "File x")

    def test_the_earliest_of_several(self):
        found = verdict(raised(0, ended=2.0, message="late"), raised(1, ended=1.0, type="KeyError"))
        assert found.summary.startswith(
            "rank 1 raised KeyError at train.py:99: boom; rank 0 raised ValueError"
        )
        assert found.ranks == (0, 1)

    def test_the_same_error_on_all_ranks(self):
        found = verdict(*(raised(r) for r in WORLD))
        assert found.summary == "ranks 0, 1, 2, 3 raised ValueError at train.py:99: boom"
        assert (found.ranks, found.waiting) == (WORLD, ())

    def test_an_exit_without_a_result(self):
        found = verdict(returned(0), ended(1, RankState.EXITED, exit_code=0))
        assert (found.kind, found.ranks) == (VerdictKind.EXITED, (1,))
        assert found.summary == "rank 1 exited with code 0 without handing in a result"

    def test_a_mismatch_heads_before_what_gloo_makes_of_it(self):
        odd = call(1, shapes=((3,),), state=CallState.FAILED)
        killed = ended(1, RankState.KILLED, odd, signal="SIGABRT")
        found = verdict(lost_its_peer(0, call(0)), killed)
        assert found.kind is VerdictKind.COUNT_MISMATCH

    def test_only_lost_peers_is_still_a_failure(self):
        found = verdict(
            lost_its_peer(0, call(0, "barrier", **TP)), lost_its_peer(1, call(1, "barrier", **TP))
        )
        assert not found.ok
        assert found.kind is VerdictKind.RAISED


class TestWorldFindings:
    FINDING = Finding(VerdictKind.DTYPE_MISMATCH, "dtypes", ranks=(1,), waiting=(0,), details={"number": 1})

    def test_what_the_world_saw_heads(self):
        found = verdict(raised(0), raised(1), findings=[self.FINDING])
        assert (found.kind, found.summary, found.ranks, found.waiting) == (
            VerdictKind.DTYPE_MISMATCH,
            "dtypes",
            (1,),
            (0,),
        )
        assert found.details["number"] == 1

    def test_a_worlds_deadlock_gives_way_to_a_rank_that_raised(self):
        deadlock = Finding(VerdictKind.DEADLOCK, "waits", ranks=(0,))
        found = verdict(blocked(0, call(0, **TP)), raised(1), findings=[deadlock])
        assert (found.kind, found.ranks) == (VerdictKind.RAISED, (1,))
        assert [also["summary"] for also in found.details["also"]] == ["waits"]

    def test_warnings_do_not_fail(self):
        warning = Finding(VerdictKind.SHAPE_MISMATCH, "shapes", severity=Severity.WARNING)
        found = verdict(returned(0), returned(1), findings=[warning])
        assert found.ok
        assert found.warnings == [warning]

    def test_one_line_on_several_ranks_is_one_finding(self):
        def finding(rank):
            details = {"call": call(rank, line=4).to_json(), "access": "/home/me/train.py:5"}
            return Finding(VerdictKind.READ_BEFORE_WAIT, f"rank {rank} reads", (rank,), details=details)

        found = verdict(*(returned(r) for r in WORLD), findings=[finding(r) for r in WORLD])
        assert found.ranks == WORLD
        assert found.summary == "rank 0 reads (ranks 1, 2, 3 do the same)"
        assert [(row["ranks"], row["line"]) for row in found.details["table"]] == [("0, 1, 2, 3", 4)]

    def test_a_finding_that_an_exception_carries(self):
        report = raised(0)
        report.failure.carried = Finding(VerdictKind.SHOULD_BE_SAME, "w differs", ranks=(1,))
        assert verdict(report, raised(1)).kind is VerdictKind.SHOULD_BE_SAME


class TestRaisedAsAnotherKind:
    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (
                "Global rank 1 is not part of group <group of ranks [0, 2]>",
                "the members are [0,2]; rank 1 in the group is global rank 2 (group_src=1 or group_dst=1)",
            ),
            (
                "Global rank 7 is not part of group <group of ranks [0, 2]>",
                "the members are [0,2]",
            ),
            (
                "Group rank 2 is not part of group <group of ranks [0, 2]>",
                "the members are [0,2]; global rank 2 is rank 1 there",
            ),
        ],
    )
    def test_ranks_that_are_not_in_the_group(self, message, reason):
        found = verdict(raised(0, message=message), returned(1))
        assert found.kind is VerdictKind.WRONG_RANK_KIND
        assert found.summary == f"rank 0 raised ValueError at train.py:99: {message}: {reason}"

    def test_what_the_backend_refused(self):
        refused = call(0, dtype="uint16", state=CallState.FAILED, site=at(99))
        other = call(1, dtype="uint16", state=CallState.FAILED, site=at(99))
        found = verdict(
            *(
                raised(r, e, type="RuntimeError", message="Invalid scalar type")
                for r, e in ((0, refused), (1, other))
            )
        )
        assert (found.kind, found.ranks) == (VerdictKind.UNSUPPORTED, (0, 1))
        assert "gloo has no all_reduce with SUM of uint16" in found.summary

    @pytest.mark.parametrize(
        ("type", "kind"),
        [
            ("meshlib.errors.PlanDisagreement", VerdictKind.PLAN_MISMATCH),
            ("meshsim.errors.UnsupportedCall", VerdictKind.UNSUPPORTED),
        ],
    )
    def test_our_own_errors(self, type, kind):
        assert verdict(raised(0, type=type), raised(1, type=type)).kind is kind


class TestDeadline:
    def test_stuck_outside_of_communication(self):
        found = verdict(returned(0), stuck(1), deadline=30.0)
        assert (found.kind, found.ranks) == (VerdictKind.STUCK, (1,))
        assert found.summary == (
            "stuck outside of communication when the deadline of 30 s passed: rank 1 at train.py:77"
        )
        assert found.details["stacks"][0]["ranks"] == "1"

    def test_others_wait_for_the_stuck_one(self):
        found = verdict(*(blocked(r, call(r, "barrier")) for r in (0, 1, 2)), stuck(3), deadline=30.0)
        assert (found.kind, found.ranks, found.waiting) == (VerdictKind.STUCK, (3,), (0, 1, 2))
        assert "barrier number 1: arrived 0, 1, 2; missing 3" in found.summary

    def test_stopped_ranks_are_not_at_fault(self):
        stopped = ended(2, RankState.STOPPED)
        found = verdict(blocked(0, call(0)), stuck(1), stopped, stuck(3), deadline=1.0)
        assert found.ranks == (1, 3)

    def test_ranks_that_could_have_gone_on_were_only_slow(self):
        found = verdict(blocked(0, call(0, **TP)), ended(1, RankState.STOPPED), deadline=2.0)
        assert (found.kind, found.ranks) == (VerdictKind.TIMEOUT, (0, 1))

    def test_nothing_more_is_known(self):
        found = verdict(returned(0), ended(1, RankState.STOPPED), deadline=2.5)
        assert (found.kind, found.ranks) == (VerdictKind.TIMEOUT, (1,))
        assert found.summary == "rank 1 had not finished when the deadline of 2.5 s passed"


class TestHazards:
    def test_never_waited(self):
        left = {"async_op": True, "waited": False}
        found = verdict(*(returned(r, call(r, line=6, **left, **TP)) for r in (0, 1)))
        assert (found.kind, found.ranks, found.ok) == (VerdictKind.NEVER_WAITED, (0, 1), False)
        assert found.summary == (
            "1 work never waited for on each of ranks 0, 1: all_reduce number 1 on tp (0, 1) at train.py:6"
        )
        assert found.details["severity"] == "hazard"

    def test_ranks_that_did_not_return_could_not_wait(self):
        left = {"async_op": True, "waited": False}
        found = verdict(returned(0, call(0, **left, **TP)), raised(1, call(1, **left, **TP)))
        assert found.kind is VerdictKind.RAISED

    def test_leftover_sends_and_receives(self):
        send = call(0, "send", 4, peer=1, state=CallState.ISSUED, reduce_op="")
        found = verdict(returned(0, send), returned(1))
        assert (found.kind, found.ranks, found.waiting) == (VerdictKind.UNMATCHED_SEND, (1,), (0,))
        recv = call(1, "recv", 4, peer=0, state=CallState.ISSUED, reduce_op="")
        assert verdict(returned(0), returned(1, recv)).kind is VerdictKind.UNMATCHED_RECV

    def test_groups_created_by_members_only(self):
        def rank(r):
            members = [call(r, "new_group", group=(0, 1), group_name="1", shapes=())] if r < 2 else []
            return returned(r, *members, call(r))

        found = verdict(*(rank(r) for r in WORLD))
        assert (found.kind, found.ranks) == (VerdictKind.GROUP_CREATION_BY_MEMBERS_ONLY, (0, 1))

    def test_groups_with_hashed_names_are_their_members_own(self):
        created = {"op": "new_group", "group": (0, 1), "group_name": "a" * 40, "shapes": ()}
        assert verdict(*(returned(r, *([call(r, **created)] if r < 2 else [])) for r in WORLD)).ok

    def test_calls_by_non_members(self):
        outside = call(2, group=(), note="not a member", line=8, axis="")
        found = verdict(*(returned(r, *([outside] if r == 2 else [])) for r in WORLD))
        assert (found.kind, found.ranks) == (VerdictKind.NON_MEMBER_CALL, (2,))
        assert "rank 2 called all_reduce without being in the group, at train.py:8" in found.summary

    def test_swapped_calls_head_before_an_assertion_that_they_broke(self):
        def rank(r, lines):
            return raised(r, *(call(r, line=n, **TP) for n in lines), type="AssertionError")

        assert verdict(rank(0, (1, 2)), rank(1, (2, 1))).kind is VerdictKind.SWAPPED_OPERATIONS


class TestProfile:
    def test_what_the_backend_lacks(self):
        ranks = [returned(r, call(r, reduce_op="BOR", dtype="int64", line=3)) for r in WORLD]
        assert verdict(*ranks).ok
        found = verdict(*ranks, profile="nccl")
        assert (found.kind, found.ranks) == (VerdictKind.UNSUPPORTED, WORLD)
        assert "NCCL has no all_reduce with BOR" in found.summary
        assert "train.py:3" in found.summary

    def test_calls_that_were_refused_and_caught_do_not_count(self):
        refused = call(0, reduce_op="BOR", dtype="int64", state=CallState.FAILED)
        assert verdict(returned(0, refused), profile="nccl").ok

    def test_tags_are_ignored_there(self):
        def ranks():
            sends = [call(0, "send", n, peer=1, tag=n, reduce_op="", group=(0, 1)) for n in (1, 2)]
            recvs = [call(1, "recv", n, peer=0, tag=n, reduce_op="", group=(0, 1)) for n in (2, 1)]
            return returned(0, *sends), returned(1, *recvs)

        assert verdict(*ranks()).ok
        found = verdict(*ranks(), profile="hccl")
        assert (found.kind, found.ranks) == (VerdictKind.P2P_TAG_MISMATCH, (0, 1))

    def test_severity_is_the_backends(self):
        left = {"async_op": True, "waited": False}
        ranks = [returned(r, call(r, **left, **TP)) for r in (0, 1)]
        assert verdict(*ranks, backend="gloo").details["severity"] == "hazard"
        assert verdict(*ranks, backend="nccl").details["severity"] == "error"


class TestFaults:
    NOTE = FAULT_NOTE + "rank=1:duplicate@all_reduce"

    def test_the_injected_ranks_are_the_culprits(self):
        """Two ranks tie, and without the note rank 0 would be the one that missed a call."""
        again = blocked(1, call(1, note=self.NOTE, **TP), call(1, **TP))
        found = verdict(returned(0, call(0, **TP)), again)
        assert (found.kind, found.ranks, found.waiting) == (VerdictKind.DEADLOCK, (1,), (0,))
        assert found.summary.startswith("injected on rank 1: rank=1:duplicate@all_reduce; ")
        assert found.details["faults"] == [{"rank": 1, "fault": "rank=1:duplicate@all_reduce"}]

    def test_a_skipped_call_counts_as_not_made(self):
        skipped = call(1, note=FAULT_NOTE + "rank=1:skip@all_reduce", **TP)
        found = verdict(blocked(0, call(0, **TP), call(0, **TP)), returned(1, skipped, call(1, **TP)))
        assert found.kind is VerdictKind.DEADLOCK
        assert "rank 1 never called all_reduce number 2" in found.summary

    def test_a_fault_that_harms_nobody_is_noted(self):
        late = call(1, note=FAULT_NOTE + "rank=1:delay=0.1@*", **TP)
        found = verdict(returned(0, call(0, **TP)), returned(1, late))
        assert found.ok
        assert found.details["faults"]


def test_details_are_json():
    found = verdict(*(blocked(r, call(r, "send", peer=1 - r, group=(0, 1), reduce_op="")) for r in (0, 1)))
    assert json.loads(json.dumps(found.details))["cycle"][0]["waits_for"] == 1
