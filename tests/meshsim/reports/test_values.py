"""Any value as JSON."""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from meshsim.reports.values import to_json_value


class Colour(enum.Enum):
    RED = "red"


class Level(str, enum.Enum):
    HIGH = "high"


@dataclass
class Point:
    x: float
    y: float


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2.5, 2.5),
        ("text", "text"),
        ([1, (2, 3)], [1, [2, 3]]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        (float("nan"), {"$": "float", "value": "nan"}),
        (float("-inf"), {"$": "float", "value": "-inf"}),
        ({1: "a"}, {"$": "mapping", "items": [[1, "a"]]}),
        ({"$": 1}, {"$": "mapping", "items": [["$", 1]]}),
        ({3, 1}, {"$": "set", "items": [1, 3]}),
        (Colour.RED, "red"),
        (Level.HIGH, "high"),
        (np.float64(1.5), 1.5),
        (np.int64(4), 4),
        (1 + 2j, {"$": "object", "type": "complex", "repr": "(1+2j)"}),
    ],
)
def test_values(value: Any, wanted: Any) -> None:
    found = to_json_value(value)
    assert found == wanted
    json.dumps(found, allow_nan=False)


def test_a_dataclass_keeps_its_fields() -> None:
    found = to_json_value(Point(1.0, float("inf")))
    assert found["$"] == "dataclass"
    assert found["type"].endswith("Point")
    assert found["fields"] == {"x": 1.0, "y": {"$": "float", "value": "inf"}}


def test_a_tensor_is_its_digest_and_statistics() -> None:
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = to_json_value(tensor)
    assert (found["$"], found["dtype"], found["shape"], found["device"]) == (
        "tensor",
        "float32",
        [2, 2],
        "cpu",
    )
    assert found["digest"] == "sha256:" + hashlib.sha256(np.float32([1, 2, 3, 4]).tobytes()).hexdigest()
    # The weights are -1, 0.236068, -0.527864 and 0.708204: multiples of 2654435761 modulo 2**32, scaled.
    projection = pytest.approx((-1 + 2 * 0.236068 - 3 * 0.527864 + 4 * 0.708204) / 4, abs=1e-5)
    assert found["statistics"] == {
        "min": 1.0,
        "max": 4.0,
        "mean": 2.5,
        "norm": pytest.approx(30**0.5),
        "projection": projection,
    }


def test_equal_tensors_have_equal_digests_whatever_their_strides() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert to_json_value(tensor.t().contiguous().t())["digest"] == to_json_value(tensor)["digest"]
    assert to_json_value(tensor + 1)["digest"] != to_json_value(tensor)["digest"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([float("nan"), 1.0]),
        torch.ones(2, requires_grad=True),
        torch.empty(2, device="meta"),
        torch.eye(2).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tensor.layout}-{tensor.device}-{tuple(tensor.shape)}",
)
def test_every_tensor_can_be_written(tensor: torch.Tensor) -> None:
    found = to_json_value({"tensor": tensor})
    json.dumps(found, allow_nan=False)
    described = found["tensor"]
    assert described["shape"] == list(tensor.shape)
    assert ("digest" in described) != ("unreadable" in described)


def test_a_conjugate_is_digested_as_the_numbers_that_it_shows() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert to_json_value(tensor.conj())["digest"] == to_json_value(torch.tensor([1 - 2j, 3 + 4j]))["digest"]


def test_an_array_is_its_digest() -> None:
    found = to_json_value(np.array([1, 2], dtype=np.int16))
    assert (found["$"], found["dtype"], found["shape"]) == ("array", "int16", [2])
    assert found["digest"].startswith("sha256:")
    json.dumps(to_json_value(np.array([object()])), allow_nan=False)


def test_a_circle_ends() -> None:
    circle: list[Any] = []
    circle.append(circle)
    json.dumps(to_json_value(circle), allow_nan=False)


def test_an_object_without_a_repr_is_named() -> None:
    assert to_json_value(Broken())["repr"].endswith("Broken: repr raised RuntimeError>")
