"""Checking a file against the published JSON Schema, as far as that schema goes.

Only the keywords that ``recording.schema.json`` uses are known; another one is a mistake in the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_ANNOTATIONS = frozenset({"$schema", "$defs", "title", "description"})


@cache
def schema() -> dict[str, Any]:
    """The schema of a recording."""
    text = Path(__file__).with_name("recording.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def first_problem(data: Any) -> str | None:
    """What is wrong with a recording's data first, with the place it is at; None when nothing is."""
    return next(_problems(data, schema(), ""), None)


def _problems(value: Any, rule: Mapping[str, Any], place: str) -> Iterator[str]:
    if "$ref" in rule:
        name = rule["$ref"].removeprefix("#/$defs/")
        yield from _problems(value, schema()["$defs"][name], place)
        return
    unknown = set(rule) - _ANNOTATIONS - set(_RULES)
    if unknown:
        raise NotImplementedError(f"the schema of recordings uses {', '.join(sorted(unknown))}")
    for keyword, check in _RULES.items():
        if keyword in rule:
            yield from check(value, rule[keyword], place)


def _type(value: Any, names: Any, place: str) -> Iterator[str]:
    listed = [names] if isinstance(names, str) else names
    right = any(isinstance(value, _TYPES[name]) for name in listed)
    if isinstance(value, bool) and "boolean" not in listed:
        right = False
    if not right:
        yield f"{place or 'the file'} is not a JSON {' or '.join(listed)}"


def _const(value: Any, wanted: Any, place: str) -> Iterator[str]:
    if value != wanted:
        yield f"{place} is {value!r}, not {wanted!r}"


def _enum(value: Any, wanted: Any, place: str) -> Iterator[str]:
    if value not in wanted:
        yield f"{place} is {value!r}, not one of {', '.join(map(repr, wanted))}"


def _required(value: Any, names: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        missing = [name for name in names if name not in value]
        if missing:
            yield f"{', '.join(missing)} missing" + (f" in {place}" if place else "")


def _properties(value: Any, rules: Any, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, rule in rules.items():
            if name in value:
                yield from _problems(value[name], rule, f"{place}.{name}" if place else name)


def _items(value: Any, rule: Any, place: str) -> Iterator[str]:
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _problems(item, rule, f"{place}[{at}]")


def _minimum(value: Any, least: Any, place: str) -> Iterator[str]:
    if isinstance(value, int | float) and value < least:
        yield f"{place} is {value}, less than {least}"


_RULES = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "required": _required,
    "minimum": _minimum,
    "properties": _properties,
    "items": _items,
}
