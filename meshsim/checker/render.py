"""A verdict as plain text: headline, what each rank did, the cycle, what failed, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshsim.checker.wording import named_ranks, row_site
from meshsim.verdict import Verdict

_MOST_ROWS = 12
_MOST_TRACEBACKS = 3


def render(verdict: Verdict) -> str:
    """The whole of a verdict as text, its parts separated by empty lines; no library's markup in it."""
    details = verdict.details
    parts = [
        _headline(verdict),
        _calls(details.get("table", ())),
        _calls(details.get("second", ()), "the other call"),
        _calls(details.get("lines_part", ()), "where the lines part"),
        _states(details.get("missing_table", ())),
        _cycle(details.get("cycle", ())),
        *_failures(details.get("failures", ())),
        *_output(details),
        *(f"also: {entry['summary']}" for entry in details.get("also", ())),
        *(f"warning: {warning.summary}" for warning in verdict.warnings),
        f"What to do: {details['advice']}" if details.get("advice") else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def draw_cycle(cycle: Sequence[Mapping[str, Any]]) -> str:
    """``0 → 1 → 0``, and under it each rank's line."""
    ranks = [str(edge["rank"]) for edge in cycle]
    lines = [" → ".join([*ranks, ranks[0]])]
    lines += [f"  {edge['rank']} → {edge['waits_for']}  {edge['text']}" for edge in cycle]
    return "\n".join(lines)


def _headline(verdict: Verdict) -> str:
    lines = [str(verdict)]
    if verdict.ranks:
        lines.append(f"at fault: {named_ranks(verdict.ranks)}")
    if verdict.waiting:
        lines.append(f"waiting: {named_ranks(verdict.waiting)}")
    return "\n".join(lines)


def _calls(rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    if not rows:
        return ""
    header = ("ranks", "call", "tensor", "dtype", "shape", "reduce op", "root/peer", "group", "line")
    cells = [_row(row) for row in rows[:_MOST_ROWS]]
    text = aligned(header, cells)
    if len(rows) > _MOST_ROWS:
        text += f"\n({len(rows) - _MOST_ROWS} more rows)"
    return f"{title}\n{text}" if title else text


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    shapes = ", ".join(str(tuple(shape)) for shape in row["shapes"][:3])
    if len(row["shapes"]) > 3:
        shapes += " …"
    other = row["root"] if row["root"] is not None else row["peer"]
    splits = f" in {row['splits'][0]} out {row['splits'][1]}" if row["splits"] is not None else ""
    source = f"  {row['text']}" if row["text"] else ""
    return (
        row["ranks"],
        row["op"],
        ", ".join(row["names"][:2]),
        row["dtype"],
        shapes + splits,
        row["reduce_op"],
        "" if other is None else str(other),
        f"{row['axis'] or 'group'} ({row['group']})",
        row_site(row) + source,
    )


def _states(rows: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(f"{_named(row['ranks'])} {row['text']}" for row in rows)


def _named(ranks: str) -> str:
    """``rank 3`` or ``ranks 0, 2``, from a row's text."""
    return f"rank {ranks}" if ranks.isdigit() else f"ranks {ranks}"


def _cycle(cycle: Sequence[Mapping[str, Any]]) -> str:
    return draw_cycle(cycle) if cycle else ""


def _failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    own = [row for row in rows if not row["peer_lost"]]
    texts = [f"{_named(row['ranks'])}\n{row['traceback'].rstrip()}" for row in own[:_MOST_TRACEBACKS]]
    if len(own) > _MOST_TRACEBACKS:
        texts.append(f"{len(own) - _MOST_TRACEBACKS} more kinds of errors, not shown here")
    for row in rows:
        if row["peer_lost"]:
            texts.append(f"{row['count']} rank{'' if row['count'] == 1 else 's'}: peer lost ({row['ranks']})")
    return texts


def _output(details: Mapping[str, Any]) -> list[str]:
    texts = [
        f"stack of {_named(entry['ranks'])}\n{entry['stack'].rstrip()}" for entry in details.get("stacks", ())
    ]
    for name in ("stack", "stderr"):
        if details.get(name):
            texts.append(f"{name}\n{str(details[name]).rstrip()}")
    return texts


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; columns without any content are left out."""
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    table = [[header[i] for i in kept], *([row[i] for i in kept] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(kept))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )
