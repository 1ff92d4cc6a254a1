"""Splitting a matrix over jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshsim.errors import UsageError
from meshsim.matrix.shards import balanced, read_durations


def test_shards_are_balanced_by_recorded_seconds() -> None:
    keys = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]
    seconds = dict(zip(keys, (7.0, 5.0, 4.0, 3.0, 1.0), strict=True))
    shards = balanced(keys, 2, seconds)
    loads = [
        sum(seconds[key] for key, of in zip(keys, shards, strict=True) if of == shard) for shard in (0, 1)
    ]
    assert loads == [10.0, 10.0]


def test_without_records_ranks_are_the_measure() -> None:
    keys = [("a", 8), ("b", 4), ("c", 2), ("d", 2)]
    assert balanced(keys, 2) == [0, 1, 1, 1]


def test_what_has_no_record_counts_as_typical_for_its_ranks() -> None:
    keys = [("new", 4), ("x", 2), ("y", 2), ("z", 1)]
    seconds = {("x", 2): 20.0, ("y", 2): 20.0, ("z", 1): 10.0}
    # 10 s a rank: the new one counts 40, which is as much as x and y together; z goes to the emptier one.
    assert balanced(keys, 2, seconds) == [0, 1, 1, 0]


def test_every_shard_gets_work_when_there_is_enough() -> None:
    keys = [(str(number), 1) for number in range(7)]
    assert set(balanced(keys, 3, dict.fromkeys(keys, 0.0))) == {0, 1, 2}


def test_durations_are_those_of_a_results_file_and_the_slowest_counts(tmp_path: Path) -> None:
    runs = [
        {"topology": "tp=2", "world_size": 2, "duration": 4.5, "backend": "fake"},
        {"topology": "tp=2", "world_size": 2, "duration": 1.5, "backend": "gloo"},
    ]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"runs": runs}))
    assert read_durations(file) == {("tp=2", 2): 4.5}
    file.write_text(json.dumps(runs))
    assert read_durations(file) == {("tp=2", 2): 4.5}


@pytest.mark.parametrize("text", ["{}", "[1]", '{"runs": [{"topology": "tp=2"}]}', "no json"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "runs.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"durations .*runs\.json"):
        read_durations(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't read durations"):
        read_durations(tmp_path / "none.json")
