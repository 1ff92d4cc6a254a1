"""What CI systems are given."""

from __future__ import annotations

import json

import pytest

from meshsim.errors import UsageError
from meshsim.matrix.formats import as_github, as_gitlab, as_json, as_text

ROWS = [
    {"topology": "dp=1", "world_size": 1, "shard": 0},
    {"topology": "dp=2,tp=2", "world_size": 4, "shard": 1},
    {"topology": "tp=4", "world_size": 4, "shard": 0},
]


def test_json_is_the_list_of_rows() -> None:
    assert json.loads(as_json(ROWS, False)) == ROWS
    assert json.loads(as_json([], False)) == []


def test_github_has_a_job_for_each_topology_or_each_shard_on_one_line() -> None:
    text = as_github(ROWS, False)
    assert json.loads(text) == {"include": ROWS}
    assert "\n" not in text
    assert json.loads(as_github(ROWS, True)) == {
        "include": [
            {"shard": 0, "world_size": 4, "topologies": "dp=1 tp=4"},
            {"shard": 1, "world_size": 4, "topologies": "dp=2,tp=2"},
        ]
    }


def test_gitlab_is_a_parallel_matrix_of_quoted_variables() -> None:
    lines = as_gitlab(ROWS[1:2], False).splitlines()
    assert lines[:3] == [".mesh-matrix:", "  parallel:", "    matrix:"]
    assert [line.strip() for line in lines[3:]] == [
        '- TOPOLOGY: "dp=2,tp=2"',
        'WORLD_SIZE: "4"',
        'SHARD: "1"',
    ]
    assert "SHARD" in as_gitlab(ROWS, True)


def test_text_is_a_table() -> None:
    head, first, *_ = as_text(ROWS, False).splitlines()
    assert head.split() == ["ranks", "topology", "shard"]
    assert first.split() == ["1", "dp=1", "0"]


def test_more_jobs_than_the_system_takes_are_refused_unless_sharded() -> None:
    rows = [{"topology": f"tp={n}", "world_size": n, "shard": n % 4} for n in range(1, 300)]
    with pytest.raises(UsageError, match=r"299 jobs .* GitHub .*--shards 256"):
        as_github(rows, False)
    with pytest.raises(UsageError, match=r"GitLab .*--shards 200"):
        as_gitlab(rows, False)
    assert len(json.loads(as_github(rows, True))["include"]) == 4
