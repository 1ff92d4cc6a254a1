"""Meshes as text, data and SVG; groups and coordinates worked out by hand for 8 ranks."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from meshlib import MeshPlan
from meshsim.errors import UsageError
from meshsim.reports.mesh_svg import mesh_svg
from meshsim.reports.mesh_text import mesh_data, mesh_text, rank_text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def cube() -> MeshPlan:
    return MeshPlan.build("dp=2,tp=2,pp=2", 8)


def test_the_text_has_views_grid_and_groups(cube: MeshPlan) -> None:
    text = mesh_text(cube)
    assert text.splitlines()[0] == "dp=2,tp=2,pp=2: 8 ranks"
    assert "pp 1\nrank  tp 0  tp 1\ndp 0     4     5\ndp 1     6     7" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["pp", "2", "[0,4]", "[1,5]", "[2,6]", "[3,7]"] in lines
    assert ["dp", "2", "[0,2]", "[1,3]", "[4,6]", "[5,7]"] in lines
    assert ["cp", "1", "each", "rank", "alone"] in lines
    assert ["dense", "pp=2", "dp=2", "cp=1", "tp=2"] in lines


@pytest.mark.parametrize(
    ("topology", "size", "grid"), [("", 1, ["rank", "0"]), ("dp=2", 2, ["rank dp 0 dp 1", "0 1"])]
)
def test_small_meshes_are_drawn_too(topology: str, size: int, grid: list[str]) -> None:
    lines = [" ".join(line.split()) for line in mesh_text(MeshPlan.build(topology, size)).splitlines()]
    first = lines.index(grid[0])
    assert lines[first : first + 2] == grid


def test_large_meshes_are_cut_short() -> None:
    text = mesh_text(MeshPlan.build("dp=512,tp=2", 1024))
    assert "the grid is drawn up to 512 ranks" in text
    assert "and 504 more" in text
    assert "[0,2,...,1022] [1,3,...,1023]" in text
    assert all(len(line) < 120 for line in text.splitlines())


def test_one_rank_has_its_place_and_groups(cube: MeshPlan) -> None:
    lines = [line.split() for line in rank_text(cube, 5).splitlines()]
    assert ["dense", "pp", "2", "1", "[1,5]"] in lines
    assert ["dense", "dp", "2", "0", "[5,7]"] in lines
    assert ["dense", "tp", "2", "1", "[4,5]"] in lines


def test_the_data_is_json_with_the_plan(cube: MeshPlan) -> None:
    data = json.loads(json.dumps(mesh_data(cube)))
    assert MeshPlan.from_json(data["plan"]) == cube
    assert data["groups"]["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert data["views"]["dense"] == {"pp": 2, "dp": 2, "cp": 1, "tp": 2}
    one = json.loads(json.dumps(mesh_data(cube, 5)))
    assert one["coordinates"]["dense"] == {"pp": 1, "dp": 0, "cp": 0, "tp": 1}
    assert one["groups"]["dp"] == [5, 7]


def test_the_svg_has_a_square_for_each_rank_none_on_top_of_another(cube: MeshPlan) -> None:
    root = ElementTree.fromstring(mesh_svg(cube))
    squares = [(rect.get("x"), rect.get("y")) for rect in root.iter(f"{SVG}rect")]
    assert len(set(squares)) == 8
    tips = [title.text for title in root.iter(f"{SVG}title")]
    assert "rank 5: pp 1, dp 0, cp 0, tp 1" in tips
    width, height = int(root.get("width", "0")), int(root.get("height", "0"))
    assert all(int(x or 0) + 44 <= width and int(y or 0) + 44 <= height for x, y in squares)


def test_ranks_of_one_tp_group_share_a_colour(cube: MeshPlan) -> None:
    root = ElementTree.fromstring(mesh_svg(cube))
    colours = [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
    assert colours[0::2] == colours[1::2]
    assert len(set(colours)) == 4


def test_a_drawing_has_an_end() -> None:
    with pytest.raises(UsageError, match="up to 4096 ranks, this mesh has 8192"):
        mesh_svg(MeshPlan.build("", 8192))
