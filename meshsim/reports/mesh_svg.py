"""A plan as an SVG drawing: a square a rank, laid out by its coordinates, coloured by its tp group."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from meshsim.errors import UsageError

if TYPE_CHECKING:
    from meshlib import MeshPlan

_CELL, _GAP, _BLOCK_GAP, _MARGIN, _TITLE = 44, 4, 26, 24, 46
_MOST_RANKS = 4096
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#e15759", "#9c755f", "#af7aa1")


def mesh_svg(plan: MeshPlan) -> str:
    """The whole document. Columns are the innermost split axis, rows the next, blocks all others.

    Each rank carries its coordinates as a tooltip. More than 4096 ranks are a UsageError.
    """
    if plan.world_size > _MOST_RANKS:
        raise UsageError(f"a drawing holds up to {_MOST_RANKS} ranks, this mesh has {plan.world_size}")
    split = [axis for axis in plan.axes("dense") if plan.size(axis) > 1]
    across, down, blocks = split[-1:], split[-2:-1], split[:-2]
    columns = plan.size(across[0]) if across else 1
    rows = plan.size(down[0]) if down else 1
    count = plan.world_size // (columns * rows)
    block_width = columns * (_CELL + _GAP) + _BLOCK_GAP
    block_height = rows * (_CELL + _GAP) + _BLOCK_GAP
    per_line = max(1, min(count, 1200 // block_width))
    parts = []
    for rank in range(plan.world_size):
        place = plan.coordinate(rank, view="dense")
        block = 0
        for axis in blocks:
            block = block * plan.size(axis) + place[axis]
        left = (
            _MARGIN + (block % per_line) * block_width + (place[across[0]] if across else 0) * (_CELL + _GAP)
        )
        top = (
            _TITLE
            + _MARGIN
            + (block // per_line) * block_height
            + (place[down[0]] if down else 0) * (_CELL + _GAP)
        )
        if all(place[axis] == 0 for axis in across + down) and blocks:
            title = " ".join(f"{axis} {place[axis]}" for axis in blocks)
            parts.append(f'<text x="{left}" y="{top - 6}" class="block">{escape(title)}</text>')
        parts.append(_square(rank, place, left, top, _COLOURS[_colour_number(plan, rank) % len(_COLOURS)]))
    width = 2 * _MARGIN + per_line * block_width
    height = _TITLE + 2 * _MARGIN + -(-count // per_line) * block_height
    return _document(plan, width, height, _axes_note(down, across), parts)


def _colour_number(plan: MeshPlan, rank: int) -> int:
    """The number of the rank's tp group among those of the mesh."""
    number = 0
    for axis, value in plan.coordinate(rank, view="dense").items():
        if axis != "tp":
            number = number * plan.size(axis) + value
    return number


def _square(rank: int, place: dict[str, int], left: int, top: int, colour: str) -> str:
    tip = ", ".join(f"{axis} {value}" for axis, value in place.items())
    middle = _CELL // 2
    return (
        f"<g><title>rank {rank}: {escape(tip)}</title>"
        f'<rect x="{left}" y="{top}" width="{_CELL}" height="{_CELL}" rx="6" fill="{colour}"/>'
        f'<text x="{left + middle}" y="{top + middle + 5}" class="rank">{rank}</text></g>'
    )


def _axes_note(down: list[str], across: list[str]) -> str:
    notes = [f"columns: {axis}" for axis in across] + [f"rows: {axis}" for axis in down]
    return "; ".join([*notes, "colour: tp group"])


def _document(plan: MeshPlan, width: int, height: int, note: str, parts: list[str]) -> str:
    ranks = f"{plan.world_size} rank{'' if plan.world_size == 1 else 's'}"
    head = escape(f"{plan.topology}: {ranks}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 420)}" height="{height}" role="img" '
        f'font-family="sans-serif">\n<title>{head}</title>\n'
        "<style>.rank{fill:#fff;font-size:15px;text-anchor:middle}.block{font-size:12px;fill:#777}"
        ".head{font-size:16px;fill:#777}.note{font-size:12px;fill:#777}</style>\n"
        f'<text x="{_MARGIN}" y="22" class="head">{head}</text>'
        f'<text x="{_MARGIN}" y="38" class="note">{escape(note)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )
