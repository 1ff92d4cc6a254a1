"""Which launcher counts, what it says, and that contradictions are told, not mixed."""

from __future__ import annotations

from typing import Any

import pytest

from meshsim.errors import UsageError
from meshsim.worlds.cluster.launch import detect, launcher, why_no_job
from meshsim.worlds.cluster.slurm_text import first_host, tasks_on_node

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu01",
    "MASTER_PORT": "29500",
}
PYTORCH_JOB = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29501",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
    "MASTER_PORT": "29502",
}
JOB_SET = {
    "JOB_COMPLETION_INDEX": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "set-0-0.set",
    "MASTER_PORT": "3389",
}


@pytest.mark.parametrize(
    ("environ", "name", "rank", "size", "local_rank", "local_size", "address", "port"),
    [
        (TORCHRUN, "torchrun", 5, 8, 1, 4, "gpu01", 29500),
        (PYTORCH_JOB, "environment", 2, 4, None, None, "train-master-0", 23456),
        (SLURM, "Slurm", 6, 8, 2, 4, "gpu01", 20000 + (1234 * 31) % 20000),
        (SLURM | {"MASTER_ADDR": "gpu01-ib", "MASTER_PORT": "1"}, "Slurm", 6, 8, 2, 4, "gpu01-ib", 1),
        (OPEN_MPI, "mpirun", 3, 4, 1, 2, "node0", 29501),
        (MPICH, "mpirun", 1, 2, 1, 2, "127.0.0.1", 29502),
        (JOB_SET, "Kubernetes", 1, 2, None, None, "set-0-0.set", 3389),
    ],
)
def test_each_launcher_says_where_the_rank_stands(
    environ: dict[str, str],
    name: str,
    rank: int,
    size: int,
    local_rank: int | None,
    local_size: int | None,
    address: str,
    port: int,
) -> None:
    launch = detect(environ)
    assert launch is not None
    assert (launch.launcher, launch.rank, launch.world_size) == (name, rank, size)
    assert (launch.local_rank, launch.local_world_size) == (local_rank, local_size)
    assert (launch.master_addr, launch.master_port) == (address, port)


def test_agents_store_and_attempt_are_torchruns() -> None:
    launch = detect(TORCHRUN)
    assert launch is not None
    assert (launch.agent_store, launch.attempt, launch.job) == (True, "2", "job7")
    assert detect(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        # One torchrun on each of two hosts, started by srun: the tasks are the agents.
        (
            SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"} | TORCHRUN,
            "torchrun",
        ),
        # torchrun typed into an interactive step of one task.
        (
            SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"} | TORCHRUN,
            "torchrun",
        ),
        # A wrapper that copies Slurm's numbers.
        (
            SLURM
            | {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
            | {"MASTER_ADDR": "gpu01", "MASTER_PORT": "1"},
            "environment",
        ),
        # A launcher of a framework's own under one Slurm task a host.
        (
            SLURM
            | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
            | {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
            | {"MASTER_ADDR": "gpu01", "MASTER_PORT": "1"},
            "environment",
        ),
        # As many tasks as ranks: they may be the ranks themselves.
        (SLURM | TORCHRUN | {"GROUP_WORLD_SIZE": "1", "SLURM_PROCID": "5"}, "torchrun"),
        # srun --mpi=pmi2 sets PMI's variables too.
        (SLURM | {"PMI_RANK": "6", "PMI_SIZE": "8"}, "Slurm"),
    ],
)
def test_what_agrees_is_read_by_precedence(environ: dict[str, str], name: str) -> None:
    launch = detect(environ)
    assert launch is not None
    assert launch.launcher == name


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (SLURM | PYTORCH_JOB | {"WORLD_SIZE": "8"}, "environment says rank 2, Slurm says 6"),
        (SLURM | PYTORCH_JOB, r"environment says 4 ranks, Slurm says 8 \(SLURM_STEP_NUM_TASKS\)"),
        (
            SLURM | TORCHRUN | {"WORLD_SIZE": "4", "RANK": "1", "GROUP_WORLD_SIZE": "1"},
            r"Slurm started 8 tasks \(SLURM_STEP_NUM_TASKS\), and torchrun knows of 1 agent: start one",
        ),
        (OPEN_MPI | PYTORCH_JOB, "environment says rank 2, mpirun says 3"),
        (SLURM | {"PMI_RANK": "1", "PMI_SIZE": "8"}, "Slurm says rank 6, mpirun says 1"),
        (SLURM | {"RANK": "3"}, "Slurm says 6, and RANK=3"),
        (SLURM | {"LOCAL_RANK": "0"}, "Slurm says 2, and LOCAL_RANK=0"),
        (TORCHRUN | {"RANK": "8"}, "rank 8 of 8 ranks"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 of 4 ranks on this host"),
        (TORCHRUN | {"WORLD_SIZE": "eight"}, "WORLD_SIZE='eight' must be a whole number"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "torchrun doesn't say where rank 0 runs"),
        ({k: v for k, v in SLURM.items() if k != "SLURM_LOCALID"}, "SLURM_LOCALID isn't set"),
        (SLURM | {"SLURM_STEP_NODELIST": ""}, "set MASTER_ADDR to rank 0's host"),
        ({k: v for k, v in OPEN_MPI.items() if k != "MASTER_ADDR"}, "-x MASTER_ADDR=host"),
        ({k: v for k, v in MPICH.items() if k != "MASTER_PORT"}, "-x MASTER_ADDR=host -x MASTER_PORT"),
    ],
)
def test_contradictions_and_gaps_are_told(environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        detect(environ)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "not started by torchrun, Slurm or Kubernetes"),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "RANK and WORLD_SIZE are set and MASTER_ADDR and MASTER_PORT missing",
        ),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, "start the program with srun"),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}, "with srun"),
        ({"PET_NNODES": "2"}, "start the program with torchrun in the pod"),
        ({"JOB_COMPLETION_INDEX": "1"}, "WORLD_SIZE, MASTER_ADDR or MASTER_PORT missing"),
    ],
)
def test_outside_of_a_job_what_is_missing_is_told(environ: dict[str, str], told: str) -> None:
    assert launcher(environ) is None
    assert detect(environ) is None
    assert told in why_no_job(environ)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu01", "gpu01"),
        ("gpu01,gpu02", "gpu01"),
        ("gpu[01-04,7]", "gpu01"),
        ("gpu[7]", "gpu7"),
        ("rack1-n[003,010-012]-ib,login1", "rack1-n003-ib"),
    ],
)
def test_first_host_of_a_slurm_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("counts", "node", "tasks"),
    [("4", 0, 4), ("4(x2),3", 1, 4), ("4(x2),3", 2, 3), ("4(x2),3", 3, None), ("", 0, None), ("x", 0, None)],
)
def test_tasks_of_a_node_of_a_slurm_list(counts: str, node: int, tasks: Any) -> None:
    assert tasks_on_node(counts, node) == tasks
