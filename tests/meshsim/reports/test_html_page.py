"""The HTML page as text: what is embedded, that nothing breaks out of it, who writes it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from html_cases import EVIL, Page, cycle_of, hostile, one_odd, passing

from meshsim.cli import main
from meshsim.errors import UsageError
from meshsim.reports.html import html_page, run_data, write_html
from meshsim.reports.html.grid import grid_of
from meshsim.result import RunResult


def test_texts_of_users_cant_break_out() -> None:
    page = Page(html_page([hostile()]))
    kinds = [attributes.get("type") for attributes, _ in page.scripts]
    # The heads, one mesh, one run, and the page's own script: none came in with the data.
    assert kinds == ["application/json"] * 3 + ["module"]
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "embed", "link")]
    assert page.data("heads")[0]["summary"] == EVIL
    assert page.data("body-0")["verdict"]["table"][0]["text"] == EVIL


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = Page(html_page([passing("tp=2", 2, 1), hostile()]))
    links = [
        value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert links == ["#run", "#run-0", "#run-1"]
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none';")
    for text in (page.scripts[-1][1], *page.styles):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
        assert "url(" not in text.replace("url(#head)", "")  # an arrow's head, in the page itself
        assert "innerHTML" not in text


def test_a_result_and_its_json_give_the_same_page(passed: RunResult, failed: RunResult) -> None:
    results = [passed, failed, cycle_of(4, "tp=4"), hostile()]
    from_json = [json.loads(json.dumps(result.to_json())) for result in results]
    assert html_page(from_json) == html_page(results)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"schema_version": 99}, "schema_version is 99, not 1"), ({"verdict": {}}, "KeyError: 'warnings'")],
    ids=["another schema", "no verdict"],
)
def test_what_is_no_run_is_refused(passed: RunResult, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        html_page([{**passed.to_json(), **change}])


def test_the_grid_has_a_row_a_topology_and_a_column_a_world(
    passed: RunResult, failed: RunResult, not_run: RunResult
) -> None:
    fine = passing("dp=2", 2, 1, backend="gloo")
    grid = grid_of([run_data(result) for result in (passed, failed, not_run, fine)])
    assert grid.worlds == ["fake", "gloo"]
    rows = grid.scenarios["train.py::step"]
    shown = [
        (row.topology, [[(cell.number, cell.label) for cell in cells] for cells in row.cells]) for row in rows
    ]
    assert shown == [
        ("dp=2", [[(0, "passed, 1 warning")], [(3, "passed")]]),
        ("tp=2", [[], [(1, "raised")]]),
        ("pp=2", [[(2, "not run")], []]),
    ]
    assert grid.counts == {"failed": 1, "warned": 1, "passed": 1, "not-run": 1}


def test_the_mesh_has_the_groups_along_every_axis() -> None:
    mesh = run_data(passing("dp=2,tp=2", 4, 0)).mesh
    assert mesh["dense"] == [["dp", 2], ["tp", 2]]
    assert mesh["places"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    # Ranks 0 and 1 share tp, 0 and 2 share dp; with cp = 1 dp is the domain that parameters are sharded over.
    groups = {names: axis["groups"] for axis in mesh["axes"] for names in axis["names"]}
    assert groups["tp"] == [0, 0, 1, 1]
    assert groups["dp"] == groups["fsdp_shard"] == [0, 1, 0, 1]


def test_calls_are_numbers_and_each_group_is_there_once() -> None:
    body = run_data(one_odd(1024, "dp=128,tp=8", odd=517)).body
    # The tp groups, and the world that the others wait in.
    assert len(body["groups"]) == 128 + 1
    assert body["groups"][1] == {"first": 0, "step": 1, "count": 1024}
    assert body["calls"][0][:5] == [0, 1, 0, 500_000, 1]  # kind, number, start and end in µs, completed
    assert body["calls"][0][15:] == [3, 4, 3_000_000, -1, 0]  # the barrier never ends
    assert [len(calls) for calls in body["calls"][516:519]] == [20, 15, 20]
    assert [end["state"] for end in body["ends"]] == ["blocked", "returned"]


def test_rows_of_the_odd_ranks_are_marked() -> None:
    result = hostile()
    row = result.verdict.details["table"][0]
    result.verdict.details["table"] = [{**row, "ranks": "0, 2-5"}, {**row, "ranks": "0-1"}, row]
    assert [row["odd"] for row in run_data(result).body["verdict"]["table"]] == [False, True, True]


def test_long_output_keeps_its_end() -> None:
    result = passing("dp=1", 1, 0)
    result.ranks[0].stdout = "x" * 30_000 + "the end"
    body = run_data(result).body
    text = body["texts"][body["ranks"][0]["stdout"]]
    assert text.startswith("(10007 characters before are left out)\nx")
    assert text.endswith("xthe end")


def test_a_page_without_runs_says_so(tmp_path: Path) -> None:
    write_html(tmp_path / "page.html", [])
    assert "No runs." in (tmp_path / "page.html").read_text(encoding="utf-8")


SCENARIO = """
import torch, torch.distributed as dist

def adds(ctx):
    dist.all_reduce(torch.ones(1))
"""


def test_meshsim_run_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adds.py").write_text(SCENARIO)
    page = tmp_path / "page.html"
    target = f"{tmp_path / 'adds.py'}::adds"
    assert main(["run", target, "--topology", "tp=2", "--topology", "dp=2", "--report", str(page)]) == 0
    heads = Page(page.read_text(encoding="utf-8")).data("heads")
    assert [(head["topology"], head["kind"]) for head in heads] == [("tp=2", "passed"), ("dp=2", "passed")]
    assert main(["run", target, "--report", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


SUITE = """
import pytest

@pytest.mark.mesh("tp=2")
def test_one(rank_context):
    assert rank_context.world_size == 2

@pytest.mark.mesh("dp=2")
def test_two(rank_context):
    assert rank_context.rank == 0, "not the first"
"""


def test_pytest_writes_one_page_of_all_workers_runs(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "--mesh-report",
        "page.html",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    heads = page.data("heads")
    assert sorted((head["scenario"], head["kind"]) for head in heads) == [
        ("test_suite.py::test_one", "passed"),
        ("test_suite.py::test_two", "raised"),
    ]
