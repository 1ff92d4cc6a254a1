"""Backends by name: which are known, and what ``auto`` means."""

from __future__ import annotations

import pytest

from meshsim.errors import CannotRun, UsageError
from meshsim.worlds import registry

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environ", "launched_by"),
    [
        ({}, None),
        (TORCHRUN, "environment"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "Slurm"),
        ({"SLURM_PROCID": "0"}, None),
        ({"SLURM_JOB_ID": "17"}, None),
    ],
)
def test_a_job_is_known_by_its_launchers_variables(environ: dict[str, str], launched_by: str | None) -> None:
    assert registry.launcher(environ) == launched_by


def test_auto_is_fake_outside_of_a_job() -> None:
    assert registry.check_backend("auto") == "fake"


def test_auto_is_the_jobs_own_backend_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    for device, backend in (("cuda", "nccl"), ("npu", "hccl"), (None, "gloo")):
        accelerator = None if device is None else type("Accelerator", (), {"type": device})()
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda found=accelerator: found)
        assert registry.auto_backend() == backend


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="backend 'mpi' is unknown; known are fake, gloo, nccl, hccl and auto"
    ):
        registry.world_for("mpi")


@pytest.mark.parametrize("backend", ["nccl", "hccl"])
def test_an_accelerator_backend_needs_a_job(backend: str) -> None:
    with pytest.raises(
        CannotRun, match=f"{backend}: this process was not started by torchrun, Slurm or Kubernetes"
    ):
        registry.world_for(backend)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "hccl"])
def test_in_a_job_a_backend_means_the_jobs_own_ranks(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    from meshsim.worlds.cluster.world import ClusterWorld

    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    world = registry.world_for(backend)
    assert isinstance(world, ClusterWorld)
    assert (world.backend, world.world_size) == (backend, 2)
    assert not isinstance(registry.world_for("fake"), ClusterWorld)
