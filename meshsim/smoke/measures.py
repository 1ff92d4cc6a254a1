"""The measuring stages: bandwidth of the mesh axes, stragglers, links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from meshsim.checker.wording import named_ranks
from meshsim.reports.tables import aligned
from meshsim.result import RunResult
from meshsim.smoke.conventions import algbw, busbw
from meshsim.smoke.outcome import Check, Stage, StageState
from meshsim.smoke.programs.bandwidth import bandwidth
from meshsim.smoke.programs.compute import compute
from meshsim.smoke.programs.links import links
from meshsim.smoke.session import Session
from meshsim.smoke.statistics import slow, slow_pairs, slow_places

FIRST_BYTES = 1 << 10
GROWTH = 16
DTYPES = ("float32", "bfloat16")
_LEAST = 2.0
_GB = 1e9

Row = dict[str, Any]
Places = Mapping[int, str]
"""Each rank's place, for people."""


def measure_bandwidth(session: Session, places: Places, max_bytes: int, times: int = 5) -> Stage:
    """Every collective along every mesh axis, from small to large as far as the time reaches."""
    began = session.elapsed
    rows: list[Row] = []
    size = FIRST_BYTES
    while size <= max_bytes:
        last = session.elapsed
        # The small size is also checked in the dtype that is least exact.
        for dtype in DTYPES if size == FIRST_BYTES else DTYPES[:1]:
            params = {"sizes": [size], "dtype": dtype, "times": times}
            result = session.run(bandwidth, params)
            if not result.ok:
                return _not_measured("bandwidth", result)
            found = session.share(lambda result=result, dtype=dtype: _by_group(result, dtype))  # type: ignore[misc]
            rows += found
        size *= GROWTH
        if session.time_left(0.85) < max(_LEAST, 3 * (session.elapsed - last)):
            break
    stage = session.share(lambda: _bandwidth_stage(rows, places))
    stage.seconds = session.elapsed - began
    return stage


def _not_measured(name: str, result: RunResult) -> Stage:
    state = StageState.NOT_RUN if result.not_run else StageState.FAILED
    check = Check(name, state, result.verdict.summary, result.duration)
    return Stage(name, state, result.verdict.summary, checks=[check], seconds=result.duration)


def _by_group(result: RunResult, dtype: str) -> list[Row]:
    """The ranks' rows put together: of each group the mean time of its ranks, and all wrong elements."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for of_rank in result.returns:
        for row in of_rank:
            key = (row["axis"], row["op"], row["in_place"], row["bytes"], tuple(row["ranks"]))
            groups[key].append(row)
    found = []
    for (axis, op, in_place, nbytes, ranks), members in groups.items():
        seconds = mean(row["seconds"] for row in members)
        found.append(
            {
                "axis": axis,
                "ranks": list(ranks),
                "op": op,
                "in_place": in_place,
                "dtype": dtype,
                "bytes": nbytes,
                "seconds": seconds,
                "algbw": algbw(nbytes, seconds),
                "busbw": busbw(op, nbytes, seconds, len(ranks)),
                "wrong": sum(row["wrong"] for row in members),
            }
        )
    return found


def _bandwidth_stage(rows: Sequence[Row], places: Places) -> Stage:
    if not rows:
        return Stage("bandwidth", StageState.NOT_RUN, "no mesh axis has more than one rank")
    checks = []
    for axis in dict.fromkeys(row["axis"] for row in rows):
        checks.append(_axis_check(axis, [row for row in rows if row["axis"] == axis], places))
    bad = [check for check in checks if check.state is not StageState.PASSED]
    worst = next((c for state in (StageState.FAILED, StageState.SLOW) for c in bad if c.state is state), None)
    wrong = sum(row["wrong"] for row in rows)
    top = max(rows, key=lambda row: row["busbw"])
    summary = (
        worst.text
        if worst is not None
        else f"{len(checks)} axes up to {_bytes_text(max(row['bytes'] for row in rows))}, #wrong {wrong}, "
        f"busbw up to {top['busbw'] / _GB:.2f} GB/s ({top['op']} on {_short(top['axis'])})"
    )
    return Stage(
        "bandwidth",
        worst.state if worst is not None else StageState.PASSED,
        summary,
        lines=_bandwidth_table(rows),
        checks=checks,
        data={"bandwidth": list(rows)},
    )


def _axis_check(axis: str, rows: Sequence[Row], places: Places) -> Check:
    name = f"bandwidth {_short(axis)}"
    wrong = [row for row in rows if row["wrong"]]
    if wrong:
        row = wrong[0]
        where = ", ".join(dict.fromkeys(places[rank] for rank in row["ranks"]))
        text = (
            f"{row['op']} of {row['dtype']} on {_short(axis)} {tuple(row['ranks'])}: {row['wrong']} wrong "
            f"elements of {_bytes_text(row['bytes'])} ({where})"
        )
        return Check(name, StageState.FAILED, text)
    largest = max(row["bytes"] for row in rows)
    for op in dict.fromkeys(row["op"] for row in rows):
        times = {
            tuple(row["ranks"]): row["seconds"] for row in rows if row["op"] == op and row["bytes"] == largest
        }
        found = slow(times)
        if found:
            ranks, factor = max(found.items(), key=lambda item: item[1])
            where = ", ".join(dict.fromkeys(places[rank] for rank in ranks))
            text = f"{op} on {_short(axis)} {ranks} takes {factor:.1f} times the median of its axis ({where})"
            return Check(name, StageState.SLOW, text)
    return Check(name, StageState.PASSED)


def _bandwidth_table(rows: Sequence[Row]) -> list[str]:
    """As nccl-tests prints it, of each axis the largest size and the slowest group."""
    table = []
    for axis in dict.fromkeys(row["axis"] for row in rows):
        of_axis = [row for row in rows if row["axis"] == axis]
        largest = max(row["bytes"] for row in of_axis)
        for op in dict.fromkeys(row["op"] for row in of_axis):
            both = [
                _slowest(
                    [r for r in of_axis if (r["op"], r["bytes"], r["in_place"]) == (op, largest, in_place)]
                )
                for in_place in (False, True)
            ]
            if any(both):
                table.append(
                    (_short(axis), op, _bytes_text(largest), *(c for row in both for c in _cells(row)))
                )
    head = ("axis", "op", "size", "out: us", "algbw", "busbw", "#wrong", "in: us", "algbw", "busbw", "#wrong")
    return [*aligned(head, table, right=range(2, len(head))).splitlines(), "algbw and busbw in GB/s"]


def _slowest(rows: Sequence[Row]) -> Row | None:
    return max(rows, key=lambda row: row["seconds"], default=None)


def _cells(row: Row | None) -> tuple[str, ...]:
    if row is None:
        return ("-", "-", "-", "-")
    return (
        f"{row['seconds'] * 1e6:.0f}",
        f"{row['algbw'] / _GB:.2f}",
        f"{row['busbw'] / _GB:.2f}",
        str(row["wrong"]),
    )


def _short(axis: str) -> str:
    """The first of the axes that share a group."""
    return axis.partition("=")[0]


def _bytes_text(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"


def measure_stragglers(session: Session, places: Places, *, side: int, times: int = 15) -> Stage:
    """How fast each rank computes on its own; who is far behind."""
    result = session.run(compute, {"side": side, "times": times})
    if not result.ok:
        return _not_measured("stragglers", result)
    return session.share(lambda: _straggler_stage(result, places))


def _straggler_stage(result: RunResult, places: Places) -> Stage:
    seconds: dict[int, float] = dict(enumerate(result.returns))
    found = slow(seconds)
    middle = median(seconds.values())
    data = {"compute_seconds": list(seconds.values())}
    if not found:
        worst = max(seconds.values()) / middle - 1 if middle > 0 else 0.0
        summary = f"{len(seconds)} ranks compute within {100 * worst:.0f} % of the median"
        if len(seconds) < 3:
            summary += "; fewer than 3 have no majority to compare with"
        return Stage("stragglers", StageState.PASSED, summary, data=data, seconds=result.duration)
    told = [
        f"rank {rank} ({places[rank]}) takes {factor:.1f} times the median" for rank, factor in found.items()
    ]
    return Stage(
        "stragglers",
        StageState.SLOW,
        "; ".join(told[:3]) + (f"; {len(told) - 3} more" if len(told) > 3 else ""),
        checks=[Check(f"rank {rank}", StageState.SLOW, text) for rank, text in zip(found, told, strict=True)],
        data=data,
        seconds=result.duration,
    )


def measure_links(
    session: Session, places: Places, ranks: Sequence[int], nbytes: int, times: int = 5
) -> Stage:
    """The links between every two of ``ranks``; which of the places or links is slow."""
    if len(ranks) < 2:
        return Stage("links", StageState.NOT_RUN, "there is nothing to link: one place")
    result = session.run(links, {"places": list(ranks), "bytes": nbytes, "times": times})
    if not result.ok:
        return _not_measured("links", result)
    return session.share(lambda: _link_stage(result, places, ranks, nbytes))


def _link_stage(result: RunResult, places: Places, ranks: Sequence[int], nbytes: int) -> Stage:
    sides: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for of_rank in result.returns:
        for row in of_rank:
            first, second = row["pair"]
            sides[first, second].append(row)
    # An exchange moves the bytes in both directions at once.
    seconds = {pair: max(row["seconds"] for row in rows) for pair, rows in sides.items()}
    data = {
        "links": [{"pair": list(pair), "seconds": s, "bandwidth": nbytes / s} for pair, s in seconds.items()]
    }
    wrong = [pair for pair, rows in sides.items() if any(row["wrong"] for row in rows)]
    text, state = "", StageState.PASSED
    if wrong:
        first, second = wrong[0]
        text = f"wrong data between {places[first]} (rank {first}) and {places[second]} (rank {second})"
        state = StageState.FAILED
    else:
        text = _slow_link_text(seconds, places)
        state = StageState.SLOW if text else StageState.PASSED
    if not text:
        bandwidths = [nbytes / value for value in seconds.values()]
        text = (
            f"{len(seconds)} link{'' if len(seconds) == 1 else 's'} between {len(ranks)} places, "
            f"{min(bandwidths) / _GB:.2f} to {max(bandwidths) / _GB:.2f} GB/s each way"
        )
    checks = [Check("links", state, text)]
    return Stage("links", state, text, checks=checks, data=data, seconds=result.duration)


def _slow_link_text(seconds: Mapping[tuple[int, int], float], places: Places) -> str:
    found = slow_places(seconds)
    if found:
        rank, factor = max(found.items(), key=lambda item: item[1])
        more = f"; {len(found) - 1} more" if len(found) > 1 else ""
        return f"{places[rank]} ({named_ranks([rank])}): its links take {factor:.1f} times the median{more}"
    pairs = slow_pairs(seconds)
    if pairs:
        (first, second), factor = max(pairs.items(), key=lambda item: item[1])
        return f"between {places[first]} and {places[second]}: {factor:.1f} times the median"
    return ""
