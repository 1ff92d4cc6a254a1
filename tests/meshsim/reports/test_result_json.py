"""``RunResult.to_json`` against its published schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from meshsim.result import SCHEMA_VERSION, RunResult

SCHEMA: dict[str, Any] = json.loads(files("meshsim.reports").joinpath("result.schema.json").read_text())
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def mismatches(value: Any, schema: dict[str, Any], path: str = "run") -> list[str]:
    """The part of JSON Schema that the file uses."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    found = [text for part in schema.get("allOf", ()) for text in mismatches(value, part, path)]
    options = schema.get("anyOf")
    if options and all(mismatches(value, option, path) for option in options):
        found.append(f"{path}: {value!r} fits none of {options}")
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(isinstance(value, TYPES[name]) for name in names):
        return [*found, f"{path}: {value!r} is not {names}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{path}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, dict):
        found += [f"{path}: no {name}" for name in schema.get("required", ()) if name not in value]
        for name, part in schema.get("properties", {}).items():
            if name in value:
                found += mismatches(value[name], part, f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for place, item in enumerate(value):
            found += mismatches(item, schema["items"], f"{path}[{place}]")
    return found


@pytest.mark.parametrize("name", ["passed", "failed", "not_run"])
def test_a_result_fits_the_schema(request: pytest.FixtureRequest, name: str) -> None:
    data = request.getfixturevalue(name).to_json()
    assert mismatches(data, SCHEMA) == []
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_schema_names_every_field_and_this_version(failed: RunResult) -> None:
    data = failed.to_json()
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) == set(data)
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    assert set(SCHEMA["$defs"]["rank"]["required"]) == set(data["ranks"][0])
    assert set(SCHEMA["$defs"]["failure"]["required"]) == set(data["ranks"][1]["failure"])


def test_the_check_sees_a_mismatch(failed: RunResult) -> None:
    data = failed.to_json()
    data["seed"] = "3"
    del data["ranks"][0]["state"]
    data["trace"][0][0]["state"] = "lost"
    assert len(mismatches(data, SCHEMA)) == 3


def test_what_the_json_says(failed: RunResult) -> None:
    data = failed.to_json()
    assert data["returns"] == [None, None]
    assert data["verdict"]["kind"] == "raised"
    assert data["verdict"]["ranks"] == [1]
    assert data["ranks"][1]["failure"]["site"] == "/home/me/train.py:12"
    assert data["trace"][0][0]["op"] == "all_reduce"
    assert data["trace"][0][0]["site"]["line"] == 12
