"""Thousands of ranks: the work grows with the events, not with their square."""

from __future__ import annotations

import sys
from collections.abc import Callable

from checker_traces import at, blocked, call, returned, world

from meshsim.checker.judge import judge
from meshsim.verdict import VerdictKind


def steps_of(function: Callable[[], object]) -> int:
    """How many function calls it takes: a measure of work that doesn't depend on the machine."""
    count = 0

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def reports(n, last_calls):
    members = tuple(range(n))
    site = at(7)

    def rank(r):
        pair = (r, r + 1) if r % 2 == 0 else (r - 1, r)
        calls = [
            call(r, group=members, site=site),
            call(r, group=pair, axis="tp", group_name="1", site=site),
            call(r, "barrier", group=members, site=site),
        ]
        return last_calls(r, calls)

    return world(*(rank(r) for r in range(n)))


def grows_linearly(last_calls, kind):
    small, large = (reports(n, last_calls) for n in (128, 1024))
    assert judge(None, large).kind is kind
    assert steps_of(lambda: judge(None, large)) < 12 * steps_of(lambda: judge(None, small))


def test_a_pass():
    grows_linearly(lambda r, calls: returned(r, *calls), VerdictKind.PASSED)


def test_one_missing_rank():
    def last(r, calls):
        return returned(r, *calls[:2]) if r == 5 else blocked(r, *calls)

    grows_linearly(last, VerdictKind.DEADLOCK)


def test_half_of_the_ranks_missing():
    def last(r, calls):
        return returned(r, *calls[:2]) if r % 2 else blocked(r, *calls)

    grows_linearly(last, VerdictKind.DEADLOCK)


def test_one_long_cycle():
    def last(r, calls):
        others = [call(r, "recv", peer=(r + 1) % len(calls[0].group), group=calls[0].group, reduce_op="")]
        return blocked(r, *calls, *others)

    grows_linearly(last, VerdictKind.SEND_RECV_CYCLE)


def test_a_mismatch():
    def last(r, calls):
        calls[0].dtype = "int32" if r == 9 else "float32"
        return returned(r, *calls)

    grows_linearly(last, VerdictKind.DTYPE_MISMATCH)


def test_ranks_are_written_as_ranges():
    def last(r, calls):
        return returned(r, *calls[:2]) if r == 511 else blocked(r, *calls)

    verdict = judge(None, reports(1024, last))
    assert verdict.summary.startswith(
        "barrier number 1: arrived 0-510, 512-1023; missing 511, on world (0-1023)"
    )
    assert len(verdict.summary) < 400
