"""One call between ranks: what must agree, operation by operation."""

from __future__ import annotations

import pytest
from checker_traces import WORLD, at, call

from meshsim.checker.compare import compare_calls, compare_group_creation, compare_p2p
from meshsim.verdict import Severity, VerdictKind

PAIR = {"group": (0, 1), "axis": "tp"}


def test_calls_that_agree():
    assert compare_calls([call(rank) for rank in WORLD]) is None


def test_the_same_call_from_different_lines_agrees():
    assert compare_calls([call(rank, line=rank) for rank in WORLD]) is None


@pytest.mark.parametrize(
    ("kind", "odd", "says"),
    [
        (VerdictKind.OPERATION_MISMATCH, {"op": "broadcast", "root": 0}, "rank 2 broadcast"),
        (VerdictKind.REDUCE_OP_MISMATCH, {"reduce_op": "MAX"}, "rank 2 MAX at train.py:10"),
        (VerdictKind.DTYPE_MISMATCH, {"dtype": "int32"}, "rank 2 int32"),
        (VerdictKind.COUNT_MISMATCH, {"shapes": ((5,),)}, "rank 2 5 elements (5,)"),
        (VerdictKind.SHAPE_MISMATCH, {"shapes": ((2, 2),)}, "rank 2 (2, 2)"),
    ],
    ids=lambda value: value.value if isinstance(value, VerdictKind) else "",
)
def test_the_odd_rank_out(kind, odd, says):
    finding = compare_calls([call(rank, **(odd if rank == 2 else {})) for rank in WORLD])
    assert (finding.kind, finding.ranks, finding.waiting) == (kind, (2,), (0, 1, 3))
    assert says in finding.summary
    assert "call 1 on world (0, 1, 2, 3)" in finding.summary
    assert finding.severity is Severity.ERROR
    assert [row["ranks"] for row in finding.details["table"]] == ["0, 1, 3", "2"]


def test_two_sides_of_the_same_size_are_both_named():
    finding = compare_calls([call(rank, reduce_op="MAX" if rank in (1, 3) else "SUM") for rank in WORLD])
    assert (finding.ranks, finding.waiting) == ((0, 1, 2, 3), ())
    assert "ranks 0, 2 SUM at train.py:10, ranks 1, 3 MAX at train.py:10" in finding.summary


def test_the_table_has_each_line():
    finding = compare_calls(
        [call(rank, line=rank, reduce_op="MAX" if rank == 3 else "SUM") for rank in WORLD]
    )
    assert [(row["ranks"], row["line"]) for row in finding.details["table"]] == [
        ("0", 0),
        ("1", 1),
        ("2", 2),
        ("3", 3),
    ]


def test_operation_comes_before_everything_else():
    odd = {"op": "broadcast", "dtype": "int32", "shapes": ((9,),), "reduce_op": "", "root": 0}
    finding = compare_calls([call(0), call(1, **odd)])
    assert finding.kind is VerdictKind.OPERATION_MISMATCH


@pytest.mark.parametrize("spelling", ["all_gather_single", "_all_gather_base"])
def test_spellings_of_one_operation(spelling):
    assert compare_calls([call(0, "all_gather_into_tensor"), call(1, spelling)]) is None


def test_some_members_suffice():
    assert compare_calls([call(0), call(3, dtype="int32")]).kind is VerdictKind.DTYPE_MISMATCH


def test_roots():
    finding = compare_calls([call(rank, "broadcast", root=int(rank == 3)) for rank in WORLD])
    assert (finding.kind, finding.ranks) == (VerdictKind.ROOT_MISMATCH, (3,))
    assert "ranks 0, 1, 2 root 0" in finding.summary


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_shapes_of_what_is_only_moved_are_a_warning(op):
    finding = compare_calls([call(0, op, root=0), call(1, op, root=0, shapes=((2, 2),))])
    assert (finding.kind, finding.severity) == (VerdictKind.SHAPE_MISMATCH, Severity.WARNING)


def test_barriers_have_nothing_to_compare():
    assert compare_calls([call(rank, "barrier") for rank in WORLD]) is None


def test_object_collectives_have_sizes_of_their_own():
    events = [call(rank, "all_gather_object", shapes=((rank + 1,),), dtype="uint8") for rank in WORLD]
    assert compare_calls(events) is None


def test_reduce_scatter_lists_agree_place_by_place():
    even = call(0, "reduce_scatter", shapes=((1,), (2,)), **PAIR)
    assert compare_calls([even, call(1, "reduce_scatter", shapes=((1,), (2,)), **PAIR)]) is None
    finding = compare_calls([even, call(1, "reduce_scatter", shapes=((2,), (1,)), **PAIR)])
    assert finding.kind is VerdictKind.COUNT_MISMATCH


def test_scatter_source_hands_in_a_list():
    source = call(0, "scatter", root=0, shapes=((3,),) * 4)
    assert (
        compare_calls([source, *(call(rank, "scatter", root=0, shapes=((3,),)) for rank in (1, 2, 3))])
        is None
    )
    finding = compare_calls([source, call(1, "scatter", root=0, shapes=((5,),))])
    assert finding.kind is VerdictKind.COUNT_MISMATCH


class TestSplits:
    """all_to_all_single, by hand: row i of ``sent`` is what rank i sends to ranks 0..3."""

    @staticmethod
    def calls(sent, expected, row=1, op="all_to_all_single"):
        shape = (lambda n: (n, row)) if row > 1 else (lambda n: (n,))
        return [
            call(r, op, splits=(tuple(sent[r]), tuple(expected[r])), shapes=(shape(sum(sent[r])),))
            for r in range(4)
        ]

    def test_uneven_and_zero(self):
        # Rank r sends d elements to rank d, so rank d expects d from everybody.
        sent = [[0, 1, 2, 3]] * 4
        expected = [[d] * 4 for d in range(4)]
        assert compare_calls(self.calls(sent, expected)) is None

    def test_the_first_pair_that_disagrees(self):
        sent = [[0, 1, 2, 3]] * 4
        expected = [[d] * 4 for d in range(4)]
        expected[2] = [2, 2, 1, 2]
        finding = compare_calls(self.calls(sent, expected, row=5))
        assert (finding.kind, finding.ranks, finding.waiting) == (
            VerdictKind.SPLITS_MISMATCH,
            (2,),
            (0, 1, 3),
        )
        assert "rank 2 sends 10 elements to rank 2" in finding.summary
        assert "rank 2 expects 5" in finding.summary

    def test_even_ones_of_different_sizes(self):
        finding = compare_calls(self.calls([[1] * 4] * 3 + [[2] * 4], [[1] * 4] * 3 + [[2] * 4]))
        assert (finding.kind, finding.ranks) == (VerdictKind.SPLITS_MISMATCH, (0, 3))
        assert "rank 0 sends 1 element to rank 3" in finding.summary

    def test_even_without_splits(self):
        events = [call(r, "all_to_all_single", shapes=((8 if r else 4,),)) for r in range(4)]
        assert compare_calls(events).kind is VerdictKind.SPLITS_MISMATCH
        assert compare_calls([call(r, "all_to_all_single", shapes=((8,),)) for r in range(4)]) is None

    def test_empty_splits_mean_even(self):
        uneven_input = call(0, "all_to_all_single", splits=((), (1, 1)), shapes=((2,),), **PAIR)
        other = call(1, "all_to_all_single", splits=((1, 1), (1, 1)), shapes=((2,),), **PAIR)
        assert compare_calls([uneven_input, other]) is None


class TestP2P:
    def test_agreement(self):
        assert compare_p2p(call(0, "send", peer=1), call(1, "recv", peer=0)) is None

    @pytest.mark.parametrize(
        ("kind", "odd", "says"),
        [
            (VerdictKind.P2P_DTYPE_MISMATCH, {"dtype": "int32"}, "rank 0 sends float32 to rank 1"),
            (VerdictKind.P2P_COUNT_MISMATCH, {"shapes": ((6,),)}, "rank 1 receives 6"),
        ],
    )
    def test_disagreement(self, kind, odd, says):
        finding = compare_p2p(call(0, "send", 5, peer=1), call(1, "recv", 7, peer=0, **odd))
        assert (finding.kind, finding.ranks, finding.severity) == (kind, (0, 1), Severity.ERROR)
        assert says in finding.summary
        assert "train.py:5" in finding.summary
        assert "train.py:7" in finding.summary

    def test_another_shape_is_a_warning(self):
        finding = compare_p2p(call(0, "send", peer=1), call(1, "recv", peer=0, shapes=((2, 2),)))
        assert (finding.kind, finding.severity) == (VerdictKind.SHAPE_MISMATCH, Severity.WARNING)


class TestGroupCreation:
    @staticmethod
    def create(rank, members, **facts):
        return call(rank, "new_group", group=members, shapes=(), dtype="", **facts)

    def test_the_same_group_everywhere(self):
        assert compare_group_creation([self.create(r, (0, 2)) for r in WORLD], WORLD) is None

    def test_different_members(self):
        events = [self.create(r, (0, 2) if r % 2 == 0 else (1, 3)) for r in WORLD]
        finding = compare_group_creation(events)
        assert finding.kind is VerdictKind.GROUP_CREATION_MISMATCH
        assert finding.summary == "new_group number 1: ranks 0, 2 asked for [0,2], ranks 1, 3 for [1,3]"
        assert finding.ranks == WORLD

    def test_the_odd_rank_and_its_place(self):
        events = [self.create(r, (0, 1) if r != 1 else (2, 3)) for r in WORLD]
        finding = compare_group_creation(events, number=2)
        assert finding.summary == "new_group number 3: ranks 0, 2, 3 asked for [0,1], rank 1 for [2,3]"
        assert (finding.ranks, finding.waiting) == ((1,), (0, 2, 3))

    def test_members_only(self):
        events = [self.create(r, (0, 1)) for r in (0, 1)]
        assert compare_group_creation(events) is None
        finding = compare_group_creation(events, WORLD)
        assert finding.kind is VerdictKind.GROUP_CREATION_BY_MEMBERS_ONLY
        assert finding.summary.startswith(
            "new_group on ranks 0, 1, not on 2, 3: works on gloo, hangs on NCCL"
        )
        assert (finding.ranks, finding.severity) == ((0, 1), Severity.HAZARD)

    def test_local_synchronization_is_for_members(self):
        events = [self.create(r, (0, 1), note="local_synchronization") for r in (0, 1)]
        assert compare_group_creation(events, WORLD) is None


def test_lines_are_the_users():
    finding = compare_calls([call(0), call(1, dtype="int32", site=at(42, "dist.all_reduce(y)", "/src/b.py"))])
    assert "rank 1 int32 at b.py:42" in finding.summary
    assert finding.details["table"][1]["text"] == "dist.all_reduce(y)"
