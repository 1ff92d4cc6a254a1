"""``meshsim matrix``, and the script under ci/ that runs one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshlib import ParallelDims

Call = Callable[..., Any]
REPOSITORY = Path(__file__).resolve().parents[3]


def test_json_is_a_list_of_topologies_that_make_their_own_world(call: Call) -> None:
    code, out, err = call("matrix", "--world-sizes", "1-6")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert rows
    for row in rows:
        assert set(row) == {"topology", "world_size", "shard"}
        assert ParallelDims.parse(row["topology"]).own_world_size() == row["world_size"]
        assert row["shard"] == 0
    assert len({(row["topology"], row["world_size"]) for row in rows}) == len(rows)


def test_the_output_is_the_same_each_time(call: Call) -> None:
    arguments = ("matrix", "--world-sizes", "1-8", "--axes", "dp,tp,pp=1,2", "--shards", "3")
    assert call(*arguments).out == call(*arguments).out


def test_shards_are_numbered_and_balanced_by_records(call: Call, tmp_path: Path) -> None:
    matrix = ("matrix", "--world-sizes", "8", "--axes", "tp,pp", "--strength", "1", "--shards", "2")
    rows = json.loads(call(*matrix).out)
    assert {row["shard"] for row in rows} == {0, 1}
    slow = rows[0]["topology"]
    runs = [{**row, "duration": 100.0 if row["topology"] == slow else 1.0} for row in rows]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"runs": runs}))
    rows = json.loads(call(*matrix, "--durations", str(file)).out)
    shard = next(row["shard"] for row in rows if row["topology"] == slow)
    assert [row["topology"] for row in rows if row["shard"] == shard] == [slow]


@pytest.mark.parametrize("name", ["json", "github", "gitlab", "text"])
def test_every_format(call: Call, name: str) -> None:
    code, out, _ = call("matrix", "--world-sizes", "2", "--axes", "tp", "--format", name)
    assert code == 0
    assert "tp=2" in out


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), "--world-sizes"),
        (("--world-sizes", "x"), "world sizes 'x'"),
        (("--world-sizes", "4", "--axes", "xx"), "axis 'xx' is unknown"),
        (("--world-sizes", "4", "--axes", "tp=0"), "tp=0"),
        (("--world-sizes", "4", "--strength", "9"), "strength must be from 1 to 6"),
        (
            ("--world-sizes", "4", "--format", "yaml"),
            "--format yaml is unknown; known are json, github, gitlab, text",
        ),
        (("--world-sizes", "4", "--shards", "0"), "--shards must be at least 1"),
        (("--world-sizes", "4", "--durations", "/no/such/file"), "can't read durations"),
        (("--world-sizes", "5", "--axes", "tp=2"), "no topology of these axes fits"),
    ],
)
def test_wrong_input_is_one_line(call: Call, arguments: tuple[str, ...], names: str) -> None:
    code, out, err = call("matrix", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert names in err


def run_matrix(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        [str(REPOSITORY / "ci" / "run-matrix"), *arguments],
        env={**os.environ, "PATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_runs_the_matrix_or_one_shard_of_it(scenarios: str) -> None:
    matrix = ("--world-sizes", "2", "--axes", "dp,tp", "--shards", "2")
    whole = run_matrix(f"{scenarios}::adds_up", *matrix)
    assert whole.returncode == 0, whole.stderr
    assert "2 runs: 2 passed" in whole.stdout
    shard = run_matrix(f"{scenarios}::breaks_with_tp", *matrix, SHARD="1")
    assert shard.returncode == 1, shard.stderr
    assert "1 run: 1 failed" in shard.stdout
    nothing = run_matrix(f"{scenarios}::adds_up", *matrix, SHARD="7")
    assert (nothing.returncode, nothing.stderr) == (2, "ci/run-matrix: shard 7 has no topology\n")
