"""``meshsim doctor`` in a job: what the launcher says and what this host lacks, without asking others."""

from __future__ import annotations

import pytest

from meshsim.cli import main

JOB = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_place_in_the_job_and_missing_libraries(
    no_job: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (JOB | {"MESHSIM_HOST": "gpu07", "CUDA_VISIBLE_DEVICES": "3,6"}).items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if " " in line)
    assert lines["CUDA_VISIBLE_DEVICES"] == "3,6"
    assert lines["the"].split(maxsplit=1)[1] == "rank 1 of 4, local rank 1, on host gpu07"
    assert lines["ranks"].split(maxsplit=2)[2] == "10.0.0.1:29500"
    assert lines["hccl"].split(maxsplit=1) == ["no", "torch_npu is not installed"]


def test_contradictions_are_told(
    no_job: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (JOB | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 0
    assert "environment says rank 1, mpirun says 2" in capsys.readouterr().out
