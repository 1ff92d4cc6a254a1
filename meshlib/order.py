"""Rank orders: which dense axis varies slowest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshlib.axes import DENSE_AXES
from meshlib.errors import TopologyError
from meshlib.rank_text import names_text


def checked_order(order: Sequence[str] | None, sizes: Mapping[str, Any]) -> tuple[str, ...]:
    """A permutation of ``pp, dp, cp, tp``. Axes of size 1 that are left out are put outermost."""
    if order is None:
        return DENSE_AXES
    example = 'such as ("pp", "dp", "cp", "tp"), outermost first'
    if isinstance(order, str):
        raise TopologyError(
            f"order must be a tuple of axis names, {example}, not the text {order!r}; "
            "for Megatron's text use MeshPlan.order_from_megatron"
        )
    if not isinstance(order, Iterable):
        raise TopologyError(f"order must be a tuple of axis names, {example}, got {order!r}")
    names = tuple(order)
    unknown = [name for name in names if name not in DENSE_AXES]
    if unknown:
        raise TopologyError(
            f"order names {names_text(map(str, unknown))}; give {names_text(DENSE_AXES)}, {example}"
        )
    if len(set(names)) != len(names):
        raise TopologyError(f"order {names} names an axis twice; give each of {names_text(DENSE_AXES)} once")
    missing = tuple(axis for axis in DENSE_AXES if axis not in names)
    wide = [axis for axis in missing if sizes[axis] != 1]
    if wide:
        sized = ", ".join(f"{axis}={sizes[axis]}" for axis in wide)
        raise TopologyError(
            f"order {names} leaves out {sized}; only axes of size 1 can be left out, {example}"
        )
    return missing + names


def order_from_megatron(text: str) -> tuple[str, ...]:
    """Megatron's order string, innermost first, as a rank order for :meth:`MeshPlan.build`.

    ``"tp-cp-ep-dp-pp"`` is ``("pp", "dp", "cp", "tp")``. ``ep`` has no place of its own: experts are always
    factored from the stage (or replica). An axis that isn't named must have size 1.
    """
    if not isinstance(text, str):
        raise TopologyError(f"a Megatron order is text such as 'tp-cp-ep-dp-pp', got {text!r}")
    names = text.lower().split("-")
    unknown = [name for name in names if name not in (*DENSE_AXES, "ep")]
    if unknown or len(set(names)) != len(names):
        what = f"unknown {names_text(map(repr, unknown))}" if unknown else "an axis named twice"
        raise TopologyError(
            f"Megatron order {text!r}: {what}; join tp, cp, ep, dp and pp with '-', such as 'tp-cp-ep-dp-pp'"
        )
    return tuple(name for name in reversed(names) if name != "ep")
