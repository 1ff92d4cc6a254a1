"""How ranks, kinds and verdicts are written."""

from __future__ import annotations

import pytest
from checker_traces import blocked, call, lost_its_peer, raised, returned, world

from meshsim.checker.judge import judge
from meshsim.checker.kinds import KINDS, advice_for, kinds_table, severity_of
from meshsim.checker.render import render
from meshsim.checker.wording import member_list, named_ranks, rank_ranges
from meshsim.verdict import Severity, VerdictKind


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([2, 0, 1], "0, 1, 2"),
        (range(8), "0, 1, 2, 3, 4, 5, 6, 7"),
        (range(511), "0-510"),
        ([*range(511), *range(512, 1024)], "0-510, 512-1023"),
        ([0, 2, 3, *range(5, 20)], "0, 2, 3, 5-19"),
        (range(0, 100, 2), ", ".join(map(str, range(0, 32, 2))) + ", and 34 ranges more"),
    ],
)
def test_rank_ranges(ranks, text):
    assert rank_ranges(ranks) == text


def test_ranks_by_name():
    assert named_ranks([4]) == "rank 4"
    assert named_ranks([0, 2]) == "ranks 0, 2"
    assert member_list((0, 2)) == "[0,2]"


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_every_kind_is_in_the_table(kind):
    row = KINDS[kind]
    assert row.meaning
    assert advice_for(kind) or kind in (VerdictKind.PASSED, VerdictKind.NOT_RUN)
    assert f"| `{kind.value}` | {row.meaning} |" in kinds_table()
    assert kind == kind.value


@pytest.mark.parametrize(
    ("kind", "gloo", "nccl"),
    [
        (VerdictKind.DTYPE_MISMATCH, Severity.ERROR, Severity.ERROR),
        (VerdictKind.GROUP_CREATION_BY_MEMBERS_ONLY, Severity.HAZARD, Severity.ERROR),
        (VerdictKind.NEVER_WAITED, Severity.HAZARD, Severity.ERROR),
        (VerdictKind.P2P_TAG_MISMATCH, Severity.ERROR, Severity.HAZARD),
        (VerdictKind.PASSED, Severity.WARNING, Severity.WARNING),
    ],
)
def test_severity_by_backend(kind, gloo, nccl):
    assert severity_of(kind, "gloo") is severity_of(kind, "fake") is gloo
    assert severity_of(kind, "nccl") is nccl


class TestRendering:
    def test_a_cycle_is_drawn(self):
        pair = {"group": (0, 1), "axis": "tp", "reduce_op": ""}
        text = render(
            judge(None, world(*(blocked(r, call(r, "send", 5 + r, peer=1 - r, **pair)) for r in (0, 1))))
        )
        headline, *parts = text.split("\n\n")
        assert headline.startswith("send recv cycle: sends and receives wait in a cycle 0→1→0")
        assert "at fault: ranks 0, 1" in headline
        assert any(
            part.startswith("0 → 1 → 0\n  0 → 1  rank 0 waits in send to 1 at train.py:5") for part in parts
        )
        assert parts[-1].startswith("What to do: Let one side receive first")

    def test_a_table_of_what_each_rank_did(self):
        ranks = [returned(r, call(r, line=r, dtype="int32" if r == 3 else "float32")) for r in range(4)]
        text = render(judge(None, world(*ranks)))
        assert "ranks  call        dtype    shape  reduce op  group" in text
        assert "3      all_reduce  int32    (4,)   SUM        world (0, 1, 2, 3)  train.py:3" in text

    def test_first_cause_first_and_consequences_folded(self):
        text = render(judge(None, world(*(lost_its_peer(r, call(r)) for r in (0, 1, 3)), raised(2))))
        assert text.index("Traceback\nValueError: boom") < text.index("3 ranks: peer lost (0, 1, 3)")

    def test_missing_ranks_are_told_with_their_state(self):
        text = render(judge(None, world(blocked(0, call(0, group=(0, 1))), returned(1))))
        assert "rank 1 returned, without any call before" in text

    def test_a_pass_is_one_line(self):
        assert render(judge(None, world(returned(0)))) == "passed: 1 rank returned\n"
