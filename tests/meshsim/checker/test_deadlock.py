"""Why ranks wait: missing ranks, cycles, and what partial traces prove."""

from __future__ import annotations

import pytest
from checker_traces import blocked, call, lost_its_peer, returned, stuck

from meshsim.checker.deadlock import deadlock_is_certain, explain_deadlock
from meshsim.report import RankReport, RankState
from meshsim.trace import CallState
from meshsim.verdict import VerdictKind

TP = {"group": (0, 1), "axis": "tp", "group_name": "1"}
DP = {"group": (0, 1), "axis": "dp", "group_name": "2"}
P2P = {"group": (0, 1), "reduce_op": ""}


def running(rank, *events):
    report = returned(rank, *events)
    report.state = RankState.STOPPED
    return report


def explain(*reports):
    return explain_deadlock(None, reports)


def test_a_rank_that_returned_early():
    calls = [call(0, line=12, **TP) for _ in range(3)]
    finding = explain(blocked(0, *calls), returned(1, call(1, **TP), call(1, line=8, **TP)))
    assert (finding.kind, finding.ranks, finding.waiting) == (VerdictKind.DEADLOCK, (1,), (0,))
    assert finding.summary == (
        "rank 1 never called all_reduce number 3 on tp (0, 1): rank 0 waits at train.py:12; "
        "rank 1 returned, last call all_reduce number 2 on tp (0, 1) at train.py:8"
        "; the lines part at all_reduce number 1: rank 0 at train.py:12, rank 1 at train.py:10"
    )


def test_operations_are_counted_each_for_itself_and_without_ours():
    mine = [call(0, internal=True, **TP), call(0, **TP), call(0, "barrier", **TP), call(0, **TP)]
    others = [call(1, internal=True, **TP), call(1, **TP), call(1, "barrier", **TP)]
    finding = explain(blocked(0, *mine), returned(1, *others))
    assert "rank 1 never called all_reduce number 2" in finding.summary


def test_barrier_names_who_arrived_and_who_is_missing():
    def ranks(*last):
        return [blocked(r, call(r), call(r, "barrier", 9)) for r in (0, 1, 2)] + list(last)

    says = "barrier number 1: arrived 0, 1, 2; missing 3, on world (0, 1, 2, 3) at train.py:9"
    by_return = explain(*ranks(returned(3, call(3))))
    assert by_return.summary.startswith(says)
    assert "rank 3 returned, last call all_reduce number 1" in by_return.summary
    by_sleep = explain(*ranks(stuck(3, call(3))))
    assert by_sleep.summary.startswith(says)
    assert by_sleep.kind is VerdictKind.STUCK
    assert "rank 3 lives, outside of communication at train.py:77, last call" in by_sleep.summary
    exited = RankReport(3, RankState.EXITED, exit_code=0, trace=[])
    assert "rank 3 exited with code 0, without any call before" in explain(*ranks(exited)).summary
    killed = RankReport(3, RankState.KILLED, signal="SIGSEGV", trace=[])
    assert "rank 3 was killed by SIGSEGV" in explain(*ranks(killed)).summary


def test_a_few_that_call_once_more_are_the_odd_ones():
    finding = explain(blocked(0, call(0), call(0, line=5)), *(returned(r, call(r)) for r in (1, 2, 3)))
    assert (finding.kind, finding.ranks, finding.waiting) == (VerdictKind.EXTRA_CALL, (0,), ())
    assert finding.summary.startswith(
        "only rank 0 called all_reduce number 2 on world (0, 1, 2, 3), at train.py:5"
    )


def test_where_a_skipped_call_shifted_the_others():
    lines = [1, 2, 3, 4]
    skipped = [1, 3, 4]
    whole = [blocked(r, *(call(r, line=n) for n in lines)) for r in (0, 1, 2)]
    finding = explain(*whole, returned(3, *(call(3, line=n) for n in skipped)))
    assert (
        "the lines part at all_reduce number 2: ranks 0, 1, 2 at train.py:2, rank 3 at train.py:3"
        in finding.summary
    )


def test_the_end_of_a_chain_is_the_cause():
    """Rank 0 waits for 1 in tp, rank 1 for 2 in the world, and rank 2 has returned."""
    reports = [
        blocked(0, call(0, line=5, **TP)),
        blocked(1, call(1, "barrier", 6)),
        returned(2),
        blocked(3, call(3, "barrier", 6)),
    ]
    finding = explain(*reports)
    assert finding.ranks == (2,)
    assert finding.waiting == (0, 1, 3)


def test_ranks_that_lost_their_peer_were_waiting():
    reports = [*(lost_its_peer(r, call(r, "barrier")) for r in (0, 1, 2)), returned(3)]
    assert explain(*reports).summary.startswith("barrier number 1: arrived 0, 1, 2; missing 3")


class TestCycles:
    def test_both_send_first(self):
        reports = [blocked(r, call(r, "send", 5 + r, peer=1 - r, **P2P)) for r in (0, 1)]
        finding = explain(*reports)
        assert (finding.kind, finding.ranks) == (VerdictKind.SEND_RECV_CYCLE, (0, 1))
        assert finding.summary == (
            "sends and receives wait in a cycle 0→1→0: rank 0 waits in send to 1 at train.py:5, "
            "rank 1 waits in send to 0 at train.py:6"
        )
        assert [(edge["rank"], edge["waits_for"]) for edge in finding.details["cycle"]] == [(0, 1), (1, 0)]

    def test_groups_in_opposite_order(self):
        finding = explain(blocked(0, call(0, **TP)), blocked(1, call(1, **DP)))
        assert finding.kind is VerdictKind.GROUP_ORDER_CYCLE
        assert "0→1→0" in finding.summary

    def test_a_ring_of_groups(self):
        n = 5
        reports = [
            blocked(r, call(r, group=tuple(sorted((r, (r + 1) % n))), group_name=str(r), axis=""))
            for r in range(n)
        ]
        finding = explain(*reports)
        assert finding.kind is VerdictKind.GROUP_ORDER_CYCLE
        assert "0→1→2→3→4→0" in finding.summary

    @pytest.mark.parametrize(
        "event",
        [
            call(0, "barrier", **TP),
            call(0, async_op=True, **TP),
            call(0, "recv", peer=1, **P2P),
        ],
        ids=["barrier", "wait", "recv"],
    )
    def test_a_cycle_through_the_host(self, event):
        finding = explain(blocked(0, event), blocked(1, call(1, **DP)))
        assert finding.kind is VerdictKind.HOST_SYNC_CYCLE

    @staticmethod
    def at_the_barrier(*tp_calls):
        """Ranks 1, 2 and 3 in the world's barrier after so many calls along tp each; rank 0 in its first."""
        pairs = [{"group": g, "axis": "tp", "group_name": str(g)} for g in ((0, 1), (2, 3))]
        others = (
            blocked(r, *(call(r, **pairs[r // 2]) for _ in range(n)), call(r, "barrier", 9))
            for r, n in zip((1, 2, 3), tp_calls, strict=True)
        )
        return explain(blocked(0, call(0, line=4, **pairs[0])), *others)

    def test_a_skipped_call_by_the_example_of_the_others(self):
        finding = self.at_the_barrier(0, 1, 1)
        assert (finding.kind, finding.ranks, finding.waiting) == (VerdictKind.DEADLOCK, (1,), (0, 2, 3))
        assert finding.summary == (
            "rank 1 never called all_reduce number 1 on tp (0, 1): rank 0 waits at train.py:4; "
            "rank 1 waits in barrier number 1 on world (0, 1, 2, 3) at train.py:9"
        )
        assert len(finding.details["cycle"]) == 2

    def test_without_an_example_it_stays_a_cycle(self):
        finding = self.at_the_barrier(0, 0, 0)
        assert (finding.kind, finding.ranks) == (VerdictKind.HOST_SYNC_CYCLE, (0, 1))

    def test_several_cycles_are_told_together(self):
        reports = [
            blocked(r, call(r, "send", peer=r ^ 1, group=tuple(range(6)), reduce_op="")) for r in range(6)
        ]
        finding = explain(*reports)
        assert finding.ranks == (0, 1, 2, 3, 4, 5)
        assert "(2 more such cycles)" in finding.summary

    def test_those_who_wait_for_a_cycle(self):
        reports = [
            blocked(0, call(0, "send", peer=1, **P2P)),
            blocked(1, call(1, "send", peer=0, **P2P)),
            blocked(2, call(2, "barrier")),
            blocked(3, call(3, "barrier")),
        ]
        finding = explain(*reports)
        assert (finding.ranks, finding.waiting) == ((0, 1), (2, 3))

    def test_long_cycles_are_cut(self):
        n = 100
        reports = [
            blocked(r, call(r, "recv", peer=(r + 1) % n, group=tuple(range(n)), reduce_op=""))
            for r in range(n)
        ]
        finding = explain(*reports)
        assert "0→1→2→3→4→5→6→…→0" in finding.summary
        assert "and 92 more" in finding.summary
        assert len(finding.details["cycle"]) == n


class TestPointToPoint:
    def test_nobody_receives(self):
        finding = explain(blocked(0, call(0, "send", 3, peer=1, **P2P)), returned(1))
        assert (finding.kind, finding.ranks, finding.waiting) == (VerdictKind.UNMATCHED_SEND, (1,), (0,))
        assert "nobody receives it: send number 1 of rank 0 to rank 1" in finding.summary

    def test_the_second_send_is_one_too_many(self):
        sends = [call(0, "send", n, peer=1, **P2P) for n in (3, 4)]
        finding = explain(blocked(0, *sends), returned(1, call(1, "recv", peer=0, **P2P)))
        assert "send number 2 of rank 0 to rank 1 on world (0, 1) waits at train.py:4" in finding.summary

    def test_nobody_sends_to_any(self):
        finding = explain(blocked(1, call(1, "recv", peer=None, **P2P)), returned(0))
        assert (finding.kind, finding.ranks) == (VerdictKind.UNMATCHED_RECV, (0,))
        assert "from any rank" in finding.summary

    def test_tags(self):
        reports = [
            blocked(0, call(0, "send", 3, peer=1, tag=7, **P2P)),
            blocked(1, call(1, "recv", 4, peer=0, tag=8, **P2P)),
        ]
        finding = explain(*reports)
        assert (finding.kind, finding.ranks) == (VerdictKind.P2P_TAG_MISMATCH, (0, 1))
        assert "with tag 7 at train.py:3" in finding.summary


def test_a_mismatch_explains_a_standstill():
    finding = explain(blocked(0, call(0)), blocked(1, call(1, "broadcast", root=0, reduce_op="")))
    assert finding.kind is VerdictKind.OPERATION_MISMATCH


def test_a_store_key_that_nobody_sets():
    wait = call(
        0, "store.wait", shapes=(), dtype="", note="waits for the store's key a", site=None, group=(0, 1)
    )
    waiting = RankReport(0, RankState.BLOCKED, pending=wait, stack='  File "/me/a.py", line 4, in f\n')
    finding = explain(waiting, returned(1))
    assert (finding.kind, finding.ranks) == (VerdictKind.DEADLOCK, (1,))
    assert "rank 0 waits in store.wait at a.py:4 (waits for the store's key a)" in finding.summary


class TestCertainty:
    """Judging while ranks still run."""

    def test_nothing_is_certain_while_the_missing_rank_runs(self):
        assert deadlock_is_certain(None, [blocked(0, call(0, **TP)), running(1)]) is None

    def test_a_rank_that_is_stuck_may_still_come(self):
        assert deadlock_is_certain(None, [blocked(0, call(0, **TP)), stuck(1)]) is None

    def test_a_rank_that_returned_will_not_come(self):
        assert deadlock_is_certain(None, [blocked(0, call(0, **TP)), returned(1)]).ranks == (1,)

    def test_one_missing_for_ever_is_enough(self):
        reports = [blocked(0, call(0)), returned(1), running(2), running(3)]
        finding = deadlock_is_certain(None, reports)
        assert finding.ranks == (1,)

    def test_a_cycle_beside_a_running_rank(self):
        reports = [
            blocked(0, call(0, "send", peer=1, **P2P)),
            blocked(1, call(1, "send", peer=0, **P2P)),
            running(2),
        ]
        assert deadlock_is_certain(None, reports).kind is VerdictKind.SEND_RECV_CYCLE

    def test_waiting_for_a_waiting_rank_is_no_cycle(self):
        recv = call(1, "recv", peer=2, reduce_op="")
        reports = [blocked(0, call(0, **TP)), blocked(1, recv), running(2), running(3)]
        assert deadlock_is_certain(None, reports) is None

    def test_any_source_may_still_be_served(self):
        recv = call(0, "recv", peer=None, group=(0, 1, 2), reduce_op="")
        assert deadlock_is_certain(None, [blocked(0, recv), returned(1), running(2)]) is None

    def test_partners_that_have_come(self):
        reports = [
            blocked(0, call(0, "send", peer=1, **P2P)),
            blocked(1, call(1, "recv", peer=0, **P2P)),
        ]
        assert deadlock_is_certain(None, reports) is None


def test_a_pending_call_that_travelled_is_found_in_its_trace():
    report = blocked(0, call(0, **TP))
    report.pending = call(0, **TP)
    report.pending.state = CallState.ISSUED
    assert explain(report, returned(1)).ranks == (1,)
