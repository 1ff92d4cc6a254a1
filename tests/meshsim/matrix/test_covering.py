"""Covering selections, against coverage counted by hand-written loops."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from meshsim.errors import UsageError
from meshsim.matrix.covering import Covering
from meshsim.selection import covering_matrix, parse_axes

SIX = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")


def valid_rows(values: tuple[int, ...], most_ranks: int) -> list[dict[str, int]]:
    """All valid sizes of SIX by the rules themselves: the FSDP domain is dp * cp, experts divide a stage."""
    rows = []
    for sizes in product(values, repeat=len(SIX)):
        row = dict(zip(SIX, sizes, strict=True))
        domain = row["dp_replicate"] * row["dp_shard"]
        if domain % row["cp"] or (domain * row["tp"]) % row["ep"]:
            continue
        if domain * row["tp"] * row["pp"] <= most_ranks:
            rows.append(row)
    return rows


def combinations_in(rows: list[dict[str, int]], strength: int) -> set[tuple[tuple[str, int], ...]]:
    return {tuple((axis, row[axis]) for axis in axes) for row in rows for axes in combinations(SIX, strength)}


def chosen_rows(values: tuple[int, ...], most_ranks: int, strength: int) -> list[dict[str, int]]:
    axes = dict.fromkeys(SIX, values)
    chosen = covering_matrix(range(1, most_ranks + 1), axes, strength)
    rows = []
    for dims, size in chosen:
        sizes = dims.resolve(size).sizes()
        rows.append({axis: int(sizes[axis] or 0) for axis in SIX})
    return rows


@pytest.mark.parametrize(
    ("values", "most_ranks", "strength"), [((1, 2, 4), 16, 2), ((1, 2), 16, 3), ((1, 3), 9, 2)]
)
def test_every_valid_combination_is_there(values: tuple[int, ...], most_ranks: int, strength: int) -> None:
    wanted = combinations_in(valid_rows(values, most_ranks), strength)
    assert combinations_in(chosen_rows(values, most_ranks, strength), strength) == wanted


def test_pairs_of_six_axes_up_to_64_ranks_need_at_most_one_and_a_half_times_the_lower_bound() -> None:
    values = (1, 2, 4, 8)
    rows = chosen_rows(values, 64, 2)
    assert combinations_in(rows, 2) == combinations_in(valid_rows(values, 64), 2)
    # Two axes of four values each have 16 pairs, and a row holds one of them.
    assert len(rows) <= 1.5 * 16
    for row in rows:
        others = [other for other in rows if other is not row]
        assert combinations_in([row], 2) - combinations_in(others, 2), "a spare row"
    assert chosen_rows(values, 64, 2) == rows, "another choice the second time"


def test_the_selection_is_the_same_each_time_and_smallest_first() -> None:
    axes = parse_axes("dp,tp,pp=1,2")
    first = covering_matrix(range(1, 13), axes, 2)
    assert first == covering_matrix(range(1, 13), axes, 2)
    sizes = [size for _, size in first]
    assert sizes == sorted(sizes)


def test_no_row_is_spare() -> None:
    rows = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    chosen = Covering(rows, 2).select()
    pairs = {i: {(p, q, rows[i][p], rows[i][q]) for p, q in combinations(range(3), 2)} for i in chosen}
    for row, own in pairs.items():
        others = set().union(*(pairs[other] for other in chosen if other != row))
        assert own - others
    assert len(chosen) == 9  # a Latin square of order 3


def test_every_rank_count_is_there_when_asked_for() -> None:
    axes = parse_axes("tp=1,2,pp=1,2")
    without = {size for _, size in covering_matrix(range(1, 9), axes, 2)}
    chosen = {size for _, size in covering_matrix(range(1, 9), axes, 2, every_size=True)}
    assert chosen == set(range(1, 9))
    assert without < chosen


def test_an_axis_without_values_takes_every_divisor() -> None:
    chosen = covering_matrix([12], parse_axes("tp"), 1)
    assert sorted(dims.tp_size for dims, _ in chosen) == [1, 2, 3, 4, 6, 12]


def test_experts_in_one_replica_leave_out_what_does_not_fit_there() -> None:
    chosen = covering_matrix([8], parse_axes("dp_replicate,ep"), 2, ep_scope="replica")
    pairs = {(dims.resolve(8).dp_replicate_size, dims.ep_size) for dims, _ in chosen}
    # edp_shard * ep == fsdp_shard: ep divides 8 / dp_replicate
    assert pairs == {(r, e) for r in (1, 2, 4, 8) for e in (1, 2, 4, 8) if (8 // r) % e == 0}


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("dp,tp", {"dp": None, "tp": None}),
        ("dp=1,2,4 tp=1,2", {"dp": (1, 2, 4), "tp": (1, 2)}),
        ("tp=1-4;pp", {"tp": (1, 2, 3, 4), "pp": None}),
        (["tp=1|2", "pp=1"], {"tp": (1, 2), "pp": (1,)}),
        ({"tp": [1, 2], "cp": None}, {"tp": (1, 2), "cp": None}),
    ],
)
def test_axes_can_be_written_in_several_ways(text: object, axes: dict[str, tuple[int, ...] | None]) -> None:
    assert parse_axes(text) == axes


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ("xp", "'xp'.*known are dp"),
        ("tp=0", "tp=0"),
        ("tp=a", "tp=a"),
        ("tp,tp=2,dp,tp", "twice"),
        ({"tp": [0]}, "tp"),
    ],
)
def test_wrong_axes_are_refused_by_name(axes: object, names: str) -> None:
    with pytest.raises(UsageError, match=names):
        parse_axes(axes)


@pytest.mark.parametrize("strength", [0, 3, True])
def test_a_strength_without_so_many_axes_is_refused(strength: int) -> None:
    with pytest.raises(UsageError, match="strength must be from 1 to 2"):
        covering_matrix([4], parse_axes("tp,pp"), strength)


def test_axes_that_fit_no_world_are_refused() -> None:
    with pytest.raises(UsageError, match="no topology of these axes fits"):
        covering_matrix([5], parse_axes("tp=2"), 1)
