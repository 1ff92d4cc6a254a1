"""The parts of a smoke run: exact data, conventions, robust statistics, bisection, schedules of pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations

import pytest
import torch

from meshsim.smoke.bisection import find_broken
from meshsim.smoke.conventions import busbw, busbw_factor
from meshsim.smoke.outcome import Check, SmokeReport, Stage, StageState
from meshsim.smoke.programs.links import rounds_of
from meshsim.smoke.programs.predictable import contribution, label, total, wrong
from meshsim.smoke.report import smoke_junit, smoke_text
from meshsim.smoke.statistics import slow, slow_pairs, slow_places

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64]
)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 300])
def test_sums_are_exact_at_any_size_in_any_dtype_and_order(size: int, dtype: torch.dtype) -> None:
    count = 37
    parts = [contribution(member, size, count, dtype, CPU) for member in range(size)]
    # By Python's whole numbers, and added one after the other in the dtype itself, in an order of chance.
    right = [sum(int(part[place]) for part in parts) for place in range(count)]
    assert total(size, count, dtype, CPU).tolist() == right
    random.Random(size).shuffle(parts)
    added = torch.zeros(count, dtype=dtype)
    for part in parts:
        added += part
    assert wrong(total(size, count, dtype, CPU), added) == 0


def test_a_missing_or_doubled_member_is_seen() -> None:
    size, count = 12, 24
    parts = [contribution(member, size, count, torch.bfloat16, CPU) for member in range(size)]
    for member in range(size):
        without = sum(part for other, part in enumerate(parts) if other != member)
        assert wrong(total(size, count, torch.bfloat16, CPU), without) > 0
        assert wrong(total(size, count, torch.bfloat16, CPU), sum(parts) + parts[member]) > 0


def test_ones_would_not_be_exact_in_bfloat16() -> None:
    ones = torch.zeros(1, dtype=torch.bfloat16)
    for _ in range(300):
        ones += 1
    assert ones.item() == 256


def test_nan_and_wrong_labels_count_as_wrong() -> None:
    right = label(3, 10, torch.float32, CPU)
    assert wrong(right, right) == 0
    assert wrong(right, label(4, 10, torch.float32, CPU)) == 10
    assert wrong(right, torch.full((10,), math.nan)) == 10


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
    ],
)
def test_bus_bandwidth_has_nccl_tests_factors(op: str, ranks: int, factor: float) -> None:
    assert busbw_factor(op, ranks) == factor
    # 1 GB in half a second.
    assert busbw(op, 10**9, 0.5, ranks) == pytest.approx(2e9 * factor)


def test_slow_ones_stand_out_of_the_noise() -> None:
    seconds = {rank: 1.0 + 0.01 * (rank % 5) for rank in range(16)}
    assert slow(seconds) == {}
    assert list(slow({**seconds, 7: 3.0, 9: 2.5})) == [7, 9]
    # All alike but one that is a little slower: no spread, and no harm.
    assert slow({**dict.fromkeys(range(16), 1.0), 7: 1.3}) == {}
    # Not far enough beyond the others' own spread.
    assert slow({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}) == {}
    assert slow({0: 1.0, 1: 9.0}) == {}


def _links(places: int, slow_place: int | None = None, slow_pair: tuple[int, int] | None = None) -> dict:
    return {
        pair: 5.0 if slow_place in pair or pair == slow_pair else 1.0 + 0.02 * (sum(pair) % 3)
        for pair in combinations(range(places), 2)
    }


@pytest.mark.parametrize("places", [3, 4, 8])
def test_slow_place_is_told_from_slow_links(places: int) -> None:
    assert slow_places(_links(places)) == {}
    for place in range(places):
        assert list(slow_places(_links(places, slow_place=place))) == [place]
    assert slow_pairs(_links(8, slow_pair=(2, 5))) == {(2, 5): pytest.approx(5.0, rel=0.1)}
    assert slow_places(_links(8, slow_pair=(2, 5))) == {}


@pytest.mark.parametrize("units", [2, 3, 5, 8, 13])
def test_bisection_finds_the_broken_unit(units: int) -> None:
    for broken in range(units):
        asked: list[Sequence[int]] = []

        def fails(group: Sequence[int], broken: int = broken, asked: list[Sequence[int]] = asked) -> bool:
            asked.append(group)
            return broken in group

        found = find_broken(range(units), fails)
        assert found == ((0, 1) if units == 2 else (broken,))
        assert len(asked) <= 3 + 2 * math.ceil(math.log2(units))


@pytest.mark.parametrize("pair", list(combinations(range(6), 2)))
def test_bisection_finds_a_pair_that_fails_only_together(pair: tuple[int, int]) -> None:
    assert set(find_broken(range(6), lambda group: set(pair) <= set(group))) == set(pair)


def test_bisection_of_what_works_or_cannot_be_asked() -> None:
    assert find_broken(range(4), lambda group: False) == ()
    assert find_broken([1], lambda group: True) == ()
    assert find_broken(range(4), lambda group: None) == ()


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_every_two_places_meet_once(count: int) -> None:
    rounds = rounds_of(range(count))
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == sorted(combinations(range(count), 2))
    for pairs in rounds:
        busy = [place for pair in pairs for place in pair]
        assert len(busy) == len(set(busy))


def _report(*stages: Stage, slow_fails: bool = True) -> SmokeReport:
    return SmokeReport("dp=2", 2, "gloo", ("a",), 3.0, 10.0, list(stages), slow_fails)


def test_report_is_one_screen_with_the_verdict_first() -> None:
    slow_stage = Stage("links", StageState.SLOW, "host b is slow", lines=[f"line {n}" for n in range(60)])
    report = _report(Stage("preflight", StageState.PASSED, "fine"), slow_stage)
    text = smoke_text(report)
    assert text.splitlines()[0] == "smoke run FAILED: links: host b is slow"
    assert len(text.splitlines()) <= 40
    assert "… 37 more (--json)" in text
    assert not report.ok
    assert _report(slow_stage, slow_fails=False).ok
    assert not _report(Stage("x", StageState.FAILED, "broken"), slow_fails=False).ok


def test_junit_has_a_case_for_each_check() -> None:
    from xml.etree import ElementTree

    checks = [
        Check("a", StageState.PASSED),
        Check("b", StageState.FAILED, "broken <&>"),
        Check("c", StageState.NOT_RUN, "no time"),
    ]
    root = ElementTree.fromstring(
        smoke_junit(_report(Stage("scenarios", StageState.FAILED, "x", checks=checks)))
    )
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failure = suite[1][0]
    assert (failure.tag, failure.get("message")) == ("failure", "broken <&>")
