"""What traces prove, whole or partial, and call by call."""

from __future__ import annotations

import random

from checker_traces import WORLD, call, trace

from meshsim.checker.certain import Matcher, mismatch_is_certain, mismatch_warnings
from meshsim.checker.replay import replay
from meshsim.trace import Trace
from meshsim.verdict import VerdictKind

TP = {"group": (0, 1), "axis": "tp", "group_name": "1"}


def test_traces_that_agree_prove_nothing():
    traces = [trace(*(call(r) for _ in range(r + 1))) for r in WORLD]
    assert mismatch_is_certain(None, traces) is None
    assert mismatch_is_certain(None, Trace(traces)) is None


def test_two_calls_at_one_place_are_enough():
    traces = [trace(call(0)), trace(call(1, dtype="int32")), [], []]
    assert mismatch_is_certain(None, traces).kind is VerdictKind.DTYPE_MISMATCH


def test_the_first_disagreement_heads():
    first = [call(r, **TP, reduce_op="MAX" if r else "SUM") for r in (0, 1)]
    second = [call(r, dtype="int32" if r else "float32") for r in (0, 1)]
    traces = [trace(first[r], second[r]) for r in (0, 1)]
    assert mismatch_is_certain(None, traces).kind is VerdictKind.REDUCE_OP_MISMATCH


def test_groups_of_the_same_name_and_other_ranks_are_other_groups():
    traces = [
        trace(call(r, group=((0, 1), (2, 3))[r // 2], dtype=("int32", "float32")[r // 2])) for r in WORLD
    ]
    assert mismatch_is_certain(None, traces) is None


def test_truncated_traces_are_matched_by_number():
    whole = trace(call(0), call(0, dtype="int32"), call(0))
    tail = trace(call(1), call(1, dtype="int32"), call(1))[1:]
    assert mismatch_is_certain(None, [whole, tail]) is None
    tail[0].dtype = "float64"
    assert mismatch_is_certain(None, [whole, tail]).kind is VerdictKind.DTYPE_MISMATCH


def test_sends_and_receives_meet_in_order():
    sends = [call(0, "send", peer=1, reduce_op="", shapes=((n,),)) for n in (1, 2)]
    recvs = [call(1, "recv", peer=0, reduce_op="", shapes=((n,),)) for n in (1, 3)]
    finding = mismatch_is_certain(None, [trace(*sends), trace(*recvs)])
    assert finding.kind is VerdictKind.P2P_COUNT_MISMATCH
    assert "sends 2" in finding.summary
    assert "receives 3" in finding.summary


def test_tags_keep_messages_apart():
    sends = [call(0, "send", peer=1, tag=n, reduce_op="", shapes=((n,),)) for n in (1, 2)]
    recvs = [call(1, "recv", peer=0, tag=n, reduce_op="", shapes=((n,),)) for n in (2, 1)]
    assert mismatch_is_certain(None, [trace(*sends), trace(*recvs)]) is None


def test_receives_from_any_source_count_once_matched():
    sends = [call(0, "send", peer=1, reduce_op="", shapes=((n,),)) for n in (1, 2)]
    recvs = [call(1, "recv", peer=peer, reduce_op="", shapes=((n,),)) for n, peer in ((1, 0), (2, None))]
    assert mismatch_is_certain(None, [trace(*sends), trace(*recvs)]) is None


def test_warnings_are_kept_apart():
    traces = [trace(call(r, "broadcast", root=0, shapes=((4,),) if r else ((2, 2),))) for r in (0, 1)]
    assert mismatch_is_certain(None, traces) is None
    (warning,) = mismatch_warnings(replay(traces))
    assert warning.kind is VerdictKind.SHAPE_MISMATCH


class TestMatcher:
    def test_calls_in_any_interleaving(self):
        for seed in range(20):
            order = random.Random(seed)
            matcher = Matcher()
            left = {r: [call(r), call(r, "barrier"), call(r, op="broadcast", root=0)] for r in WORLD}
            while left:
                rank = order.choice(list(left))
                assert matcher.add(left[rank].pop(0)) is None
                if not left[rank]:
                    del left[rank]

    def test_a_disagreement_is_named_at_once(self):
        matcher = Matcher()
        assert matcher.add(call(0)) is None
        assert matcher.add(call(1)) is None
        finding = matcher.add(call(3, dtype="int32"))
        assert (finding.kind, finding.ranks) == (VerdictKind.DTYPE_MISMATCH, (3,))

    def test_point_to_point(self):
        matcher = Matcher()
        assert matcher.add(call(1, "recv", peer=0, reduce_op="")) is None
        assert matcher.add(call(0, "send", peer=1, reduce_op="", dtype="int32")).kind is (
            VerdictKind.P2P_DTYPE_MISMATCH
        )

    def test_creations(self):
        matcher = Matcher()
        members = {0: (0, 2), 1: (1, 3)}
        assert matcher.add(call(0, "new_group", group=members[0], group_name="1", shapes=())) is None
        finding = matcher.add(call(1, "new_group", group=members[1], group_name="1", shapes=()))
        assert finding.kind is VerdictKind.GROUP_CREATION_MISMATCH

    def test_warnings_do_not_stop(self):
        matcher = Matcher()
        assert matcher.add(call(0, "broadcast", root=0, group=(0, 1))) is None
        assert matcher.add(call(1, "broadcast", root=0, group=(0, 1), shapes=((2, 2),))) is None
        assert [warning.kind for warning in matcher.warnings] == [VerdictKind.SHAPE_MISMATCH]

    def test_memory_is_that_of_calls_under_way(self):
        matcher = Matcher()
        for _ in range(100):
            for r in WORLD:
                matcher.add(call(r))
        assert not matcher._slots
