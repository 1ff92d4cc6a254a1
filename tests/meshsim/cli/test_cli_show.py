"""``meshsim show``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

Call = Callable[..., Any]


def test_the_mesh_is_drawn(call: Call) -> None:
    code, out, err = call("show", "dp=2,tp=2,pp=2")
    assert (code, err) == (0, "")
    assert out.startswith("dp=2,tp=2,pp=2: 8 ranks")
    assert "[0,4] [1,5] [2,6] [3,7]" in out


def test_a_world_size_fills_in_dp(call: Call) -> None:
    assert call("show", "tp=2", "--world-size", "8").out.startswith("dp=4,tp=2: 8 ranks")


def test_one_rank(call: Call) -> None:
    code, out, _ = call("show", "dp=2,tp=2", "--rank", "3")
    assert code == 0
    assert out.startswith("rank 3 of 4 in dp=2,tp=2")


def test_json_is_the_whole_output(call: Call) -> None:
    data = json.loads(call("show", "dp=2,tp=2", "--json").out)
    assert data["groups"]["tp"] == [[0, 1], [2, 3]]
    assert json.loads(call("show", "dp=2,tp=2", "--json", "--rank", "2").out)["groups"]["tp"] == [2, 3]


def test_the_order_is_said(call: Call) -> None:
    assert "rank order, outermost first: pp, cp, tp, dp" in call("show", "dp=2,tp=2", "--order", "tp,dp").out


def test_an_order_changes_the_groups(call: Call) -> None:
    data = json.loads(call("show", "dp=2,tp=2", "--order", "tp,dp", "--json").out)
    assert data["groups"]["tp"] == [[0, 2], [1, 3]]


def test_svg_is_written(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "mesh.svg"
    assert call("show", "dp=2,tp=2", "--svg", str(file)).code == 0
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("tp=3", "--world-size", "4"), "4 % 3"),
        (("dp=2", "--rank", "2"), "--rank 2 isn't in this mesh; its ranks are 0 to 1"),
        (("dp=2", "--rank", "-1"), "--rank -1"),
        (("dp=two",), "dp"),
        (("zz=2",), "zz"),
        (("dp=2", "--svg", "/no/such/folder/mesh.svg"), "no folder"),
        (("dp=2", "--order", "xx"), "xx"),
        (("dp=2", "--ep-scope", "galaxy"), "galaxy"),
        (("dp=2", "--world-size", "0"), "world_size"),
        (("tp=3,pp=5,cp=7,ep=11", "--world-size", "4"), "4"),
        ((), "topology"),
    ],
)
def test_wrong_input_is_one_line(call: Call, arguments: tuple[str, ...], names: str) -> None:
    code, out, err = call("show", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert names in err
