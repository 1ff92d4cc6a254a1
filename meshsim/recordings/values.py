"""Comparing returned values as a recording keeps them: exactly, or within the tolerance of their dtype."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

RELATIVE_TOLERANCE = {
    "float64": 1e-7,
    "float32": 1.3e-6,
    "float16": 1e-3,
    "bfloat16": 1.6e-2,
    "complex64": 1.3e-6,
    "complex128": 1e-7,
    "float8_e4m3fn": 0.125,
    "float8_e5m2": 0.25,
}
"""Of a tensor's statistics, by dtype: those of ``torch.testing``. Integers and booleans must be equal."""
ABSOLUTE_TOLERANCE = 1e-5
PLAIN_FLOAT_TOLERANCE = 1.3e-6
"""Of a Python float, which is as a rule a float32 tensor's ``item()``."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def differences(recorded: Any, now: Any, place: str = "") -> Iterator[str]:
    """What differs, first things first: the place in the value and both values."""
    kind = recorded.get("$") if isinstance(recorded, dict) else None
    if kind is not None and isinstance(now, dict) and now.get("$") == kind:
        yield from _described(kind, recorded, now, place)
    elif isinstance(recorded, dict) and isinstance(now, dict):
        yield from _mappings(recorded, now, place)
    elif isinstance(recorded, list) and isinstance(now, list):
        yield from _lists(recorded, now, place)
    elif _is_number(recorded) and _is_number(now):
        yield from _numbers(recorded, now, place)
    elif type(recorded) is not type(now) or recorded != now:
        yield f"{_at(place)}{_short(recorded)} was recorded, {_short(now)} came now"


def _described(kind: str, recorded: dict[str, Any], now: dict[str, Any], place: str) -> Iterator[str]:
    if kind == "tensor":
        yield from _tensors(recorded, now, place)
        return
    for name in sorted({*recorded, *now} - {"$"}):
        if name not in recorded or name not in now:
            yield f"{_at(place)}{name} is in one of them only"
        elif name == "repr":
            before, after = (_ADDRESS.sub("0x…", str(data[name])) for data in (recorded, now))
            if before != after:
                yield f"{_at(place)}{before} was recorded, {after} came now"
        else:
            inner = place if name in ("fields", "items", "local") else f"{place}.{name}"
            yield from differences(recorded[name], now[name], inner)


def _mappings(recorded: dict[str, Any], now: dict[str, Any], place: str) -> Iterator[str]:
    for name in [*recorded, *(name for name in now if name not in recorded)]:
        inner = f"{place}[{name!r}]"
        if name not in now:
            yield f"{inner} was recorded and is missing now"
        elif name not in recorded:
            yield f"{inner} is new"
        else:
            yield from differences(recorded[name], now[name], inner)


def _lists(recorded: list[Any], now: list[Any], place: str) -> Iterator[str]:
    if len(recorded) != len(now):
        yield f"{_at(place)}{len(recorded)} items were recorded, {len(now)} came now"
    for at, (before, after) in enumerate(zip(recorded, now, strict=False)):
        yield from differences(before, after, f"{place}[{at}]")


def _numbers(recorded: float, now: float, place: str) -> Iterator[str]:
    exact = isinstance(recorded, int) and isinstance(now, int)
    if exact and recorded == now:
        return
    if not exact and math.isclose(
        recorded, now, rel_tol=PLAIN_FLOAT_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE * PLAIN_FLOAT_TOLERANCE
    ):
        return
    yield f"{_at(place)}{recorded!r} was recorded, {now!r} came now"


def _tensors(recorded: dict[str, Any], now: dict[str, Any], place: str) -> Iterator[str]:
    for name in ("dtype", "shape", "placements"):
        if recorded.get(name) != now.get(name):
            before, after = recorded.get(name), now.get(name)
            yield f"{_at(place)}a tensor of {name} {before} was recorded, {after} came now"
            return
    if "local" in recorded and "local" in now:
        yield from _tensors(recorded["local"], now["local"], place)
        return
    if recorded.get("digest") == now.get("digest") and "digest" in now:
        return
    before, after = recorded.get("statistics", {}), now.get("statistics", {})
    moved = _first_beyond_tolerance(recorded["dtype"], recorded["shape"], before, after)
    if moved is not None:
        yield (
            f"{_at(place)}a {recorded['dtype']} tensor of shape {recorded['shape']}: {moved} was "
            f"{_short(before.get(moved))}, now {_short(after.get(moved))}"
        )


def _first_beyond_tolerance(
    dtype: str, shape: list[int], before: dict[str, Any], after: dict[str, Any]
) -> str | None:
    """The statistic that says that two tensors of different digest differ; None: within the tolerance."""
    relative = RELATIVE_TOLERANCE.get(dtype)
    if relative is None or set(before) != set(after) or not before:
        return next((name for name in before if before[name] != after.get(name)), "digest")
    numel = math.prod(shape)
    for name, old in before.items():
        new = after[name]
        if not (_is_number(old) and _is_number(new)):
            if old != new:
                return name
            continue
        if abs(old - new) > relative * _scale(name, before, numel) + ABSOLUTE_TOLERANCE * relative:
            return name
    return None


def _scale(name: str, statistics: dict[str, Any], numel: int) -> float:
    """How far a statistic may move at most when every element moves by its own size."""
    given = statistics.get("norm")
    norm = float(given) if isinstance(given, int | float) else 0.0
    root_mean_square = norm / math.sqrt(numel)
    if name == "norm":
        return norm
    if name in ("mean", "projection"):
        return root_mean_square
    value = statistics[name]
    return float(max(abs(value), root_mean_square)) if _is_number(value) else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at(place: str) -> str:
    return f"{place}: " if place else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
