"""Look-alike calls swapped within a group, and groups used in opposite order."""

from __future__ import annotations

from checker_traces import at, call, trace

from meshsim.checker.order import opposite_group_order, swapped_operations
from meshsim.checker.replay import replay
from meshsim.checker.wording import tensor_name
from meshsim.verdict import Severity, VerdictKind

TP = {"group": (0, 1), "axis": "tp", "group_name": "1"}
DP = {"group": (0, 1), "axis": "dp", "group_name": "2"}


def line(number, name, file="/home/me/train.py"):
    return at(number, f"dist.all_reduce({name})", file)


def swapped(*ranks, **facts):
    """Each rank's calls as (line, tensor's name)."""
    traces = [
        trace(*(call(r, site=line(n, name), **{**TP, **facts}) for n, name in calls))
        for r, calls in enumerate(ranks)
    ]
    return swapped_operations(replay(traces))


def test_crossing_names_on_different_lines():
    (finding,) = swapped([(1, "a"), (2, "b")], [(3, "b"), (4, "a")])
    assert (finding.kind, finding.ranks) == (VerdictKind.SWAPPED_OPERATIONS, (0, 1))
    assert "call 1: rank 0 'a' at train.py:1, rank 1 'b' at train.py:3" in finding.summary
    assert "call 2: rank 0 'b' at train.py:2, rank 1 'a' at train.py:4" in finding.summary


def test_crossing_lines():
    (finding,) = swapped([(1, "f()"), (2, "g()")], [(2, "g()"), (1, "f()")])
    assert finding.ranks == (0, 1)


def test_the_rank_that_swapped():
    straight = [(1, "a"), (2, "b")]
    facts = {"group": (0, 1, 2)}
    (finding,) = swapped(straight, straight[::-1], straight, **facts)
    assert (finding.ranks, finding.waiting) == ((1,), (0, 2))
    (finding,) = swapped(straight[::-1], straight, straight, **facts)
    assert (finding.ranks, finding.waiting) == ((0,), (1, 2))


def test_a_swap_late_in_a_loop():
    loop = [(1, "a"), (2, "b")] * 3
    odd = [*loop[:4], (2, "b"), (1, "a")]
    (finding,) = swapped(loop, odd)
    assert "call 5" in finding.summary


def test_different_lines_in_the_same_order_are_fine():
    assert not swapped([(1, "a"), (2, "b")], [(3, "a"), (4, "b")])
    assert not swapped([(1, "a"), (2, "a")], [(3, "a"), (4, "a")])


def test_the_same_lines_used_in_turns_for_one_tensor_are_fine():
    assert not swapped([(1, "x"), (2, "x")], [(2, "x"), (1, "x")])


def test_roots_tell_calls_apart():
    """``broadcast(mine, src=0); broadcast(theirs, src=1)`` and the reverse names on rank 1: correct."""

    def rank(r, names):
        return trace(
            *(
                call(
                    r,
                    "broadcast",
                    root=root,
                    site=at(10 * r + root, f"dist.broadcast({name}, src={root})"),
                    **TP,
                )
                for root, name in enumerate(names)
            )
        )

    assert not swapped_operations(replay([rank(0, ["mine", "theirs"]), rank(1, ["theirs", "mine"])]))


def test_names_of_different_files_are_different_names():
    def rank(r, names):
        return trace(*(call(r, site=line(i, name, f"/src/{r}.py"), **TP) for i, name in enumerate(names)))

    assert not swapped_operations(replay([rank(0, "ab"), rank(1, "ba")]))


def test_one_finding_for_a_group():
    many = [(1, "a"), (2, "b")] * 10
    assert len(swapped(many, many[1:] + many[:1])) == 1


def test_names_of_tensors():
    for text, name in (
        ("dist.all_reduce(a)", "a"),
        ("work = dist.all_reduce(grads['w'], async_op=True)", "grads['w']"),
        ("else: torch.distributed.all_reduce(tensor=self.x, op=op)", "self.x"),
        ("sync(a)", None),
        ("dist.all_reduce(f(x))", None),
        ("dist.all_reduce(", None),
    ):
        assert tensor_name(call(0, site=at(1, text))) == name


class TestGroupOrder:
    @staticmethod
    def run(*ranks, **facts):
        traces = [
            trace(*(call(r, line=i, **{**g, **facts}) for i, g in enumerate(groups)))
            for r, groups in enumerate(ranks)
        ]
        return opposite_group_order(replay(traces))

    def test_opposite(self):
        finding = self.run([TP, DP], [DP, TP], async_op=True)
        assert (finding.kind, finding.ranks) == (VerdictKind.GROUP_ORDER_CYCLE, (0, 1))
        assert finding.severity is Severity.HAZARD
        assert "rank 0 all_reduce on tp (0, 1) at train.py:0, then all_reduce on dp (0, 1) at train.py:1" in (
            finding.summary
        )

    def test_same_order(self):
        assert self.run([TP, DP, TP], [TP, DP, TP], async_op=True) is None

    def test_the_second_round_is_opposite(self):
        assert self.run([TP, DP, TP, DP], [TP, DP, DP, TP], async_op=True) is not None

    def test_ring_of_three(self):
        a, b, c = ({"group": g, "group_name": str(g), "axis": ""} for g in ((0, 1), (1, 2), (0, 2)))
        finding = self.run([a, c], [b, a], [c, b], async_op=True)
        assert finding.ranks == (0, 1, 2)
        assert self.run([a, c], [a, b], [b, c], async_op=True) is None

    def test_groups_that_share_no_order(self):
        """Pairs along two axes of a mesh: each rank uses tp, then dp."""
        tp = [{"group": g, "group_name": str(g), "axis": "tp"} for g in ((0, 1), (2, 3))]
        dp = [{"group": g, "group_name": str(g), "axis": "dp"} for g in ((0, 2), (1, 3))]
        ranks = [[tp[r // 2], dp[r % 2]] * 3 for r in range(4)]
        assert self.run(*ranks, async_op=True) is None
