"""The launch templates in ci/cluster, with stand-ins for srun and mpirun that set what the real ones set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_jobs import free_port, without_launcher

TEMPLATES = Path(__file__).parents[3] / "ci" / "cluster"

SRUN = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
nodes, per_node = int(os.environ["SLURM_NNODES"]), int(os.environ["TASKS_PER_NODE"])
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    if option.startswith("--ntasks-per-node="):
        per_node = int(option.partition("=")[2])
tasks = nodes * per_node
started = []
for task in range(tasks):
    node = task // per_node
    started.append(subprocess.Popen(arguments, env={{
        **os.environ, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task % per_node),
        "SLURM_NODEID": str(node), "SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_TASKS_PER_NODE": f"{{per_node}}(x{{nodes}})", "SLURM_STEP_NODELIST": "localhost",
        "MESHSIM_HOST": f"node{{node}}"}}))
sys.exit(max(process.wait() for process in started))
"""

MPIRUN = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
environ, size = dict(os.environ), 0
while arguments[0].startswith("-"):
    option, value = arguments.pop(0), arguments.pop(0)
    if option == "-np":
        size = int(value)
    elif option == "-x" and "=" in value:
        name, _, text = value.partition("=")
        environ[name] = text
started = [
    subprocess.Popen(arguments, env={{
        **environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size)}})
    for rank in range(size)
]
sys.exit(max(process.wait() for process in started))
"""


def launched(folder: Path, template: str, **environ: str) -> subprocess.CompletedProcess[str]:
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("mpirun", MPIRUN), ("scontrol", "#!/bin/sh\necho localhost\n")):
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.path.dirname(sys.executable), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(TEMPLATES / template), "run", "mesh_facts", "-t", "tp=2", "--backend", "gloo"],
        env={**without_launcher(os.environ), "PATH": path, "OMP_NUM_THREADS": "1", **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_NNODES": "2",
    "TASKS_PER_NODE": "2",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("template", "environ", "ranks"),
    [
        ("torchrun.sh", {"GPUS": "2"}, 2),
        ("mpirun.sh", {"RANKS": "2", "HOSTS": "127.0.0.1:2"}, 2),
        ("slurm.sbatch", SLURM, 4),
        ("slurm-torchrun.sbatch", {**SLURM, "GPUS": "1"}, 2),
    ],
)
def test_template_starts_a_job(tmp_path: Path, template: str, environ: dict[str, str], ranks: int) -> None:
    port = str(free_port())
    ended = launched(tmp_path, template, **{"PORT": port, "MASTER_PORT": port, **environ})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("1 run: 1 passed") == 1
    assert f"    {ranks}  tp=2      gloo     passed" in ended.stdout


@pytest.mark.parametrize("template", sorted(path.name for path in TEMPLATES.glob("*.s*")))
def test_template_is_valid_shell(template: str) -> None:
    subprocess.run(["bash", "-n", str(TEMPLATES / template)], check=True)
