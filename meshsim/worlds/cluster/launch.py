"""Which launcher started this process as one rank of a job, and what it says: one source, never a mixture.

Precedence, the first that is there counts:

1. **torchrun**: ``TORCHELASTIC_RUN_ID``; also under Slurm, mpirun or Kubernetes, whose tasks are then agents.
2. **environment**: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as Kubernetes' PyTorchJob
   operator sets them, or a script.
3. **Slurm**: a step started by ``srun`` (``SLURM_PROCID`` and ``SLURM_STEP_ID``).
4. **mpirun**: Open MPI's ``OMPI_COMM_WORLD_RANK``, or ``PMI_RANK`` of MPICH and Intel MPI.
5. **Kubernetes**: an indexed Job or a JobSet (``JOB_COMPLETION_INDEX``) with ``WORLD_SIZE``, ``MASTER_ADDR``
   and ``MASTER_PORT``.

What the others say must agree with it, as ranks or as the agents that the ranks run under; a contradiction is
an error that shows both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshsim.errors import UsageError
from meshsim.worlds.cluster.slurm_text import first_host, tasks_on_node

Environ = Mapping[str, str]

# sbatch sets SLURM_PROCID in the batch script too; what srun started has a step of its own.
_BATCH_STEPS = ("4294967291", "batch")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_FIRST_SLURM_PORT, _SLURM_PORTS = 20000, 20000


@dataclass(frozen=True)
class Launch:
    """This process's place in the job, as its launcher says."""

    launcher: str
    """``torchrun``, ``environment``, ``Slurm``, ``mpirun`` or ``Kubernetes``."""
    rank: int
    world_size: int
    local_rank: int | None
    """None where the launcher doesn't say: it follows from the hosts of the ranks."""
    local_world_size: int | None
    master_addr: str
    master_port: int
    job: str = ""
    """The launcher's name for the job."""
    agent_store: bool = False
    """The agent hosts the store at the master's address; else rank 0 does."""
    attempt: str = "0"
    """Differs from one restart of the ranks to the next."""


@dataclass(frozen=True)
class _Claim:
    """What a launcher that isn't the source says of this process."""

    launcher: str
    rank_name: str
    rank: int
    size_name: str
    size: int


def detect(environ: Environ | None = None) -> Launch | None:
    """The job that this process is a rank of; None outside of any. Contradictions are a ``UsageError``."""
    env = os.environ if environ is None else environ
    found = launcher(env)
    if found is None:
        return None
    launch = _READERS[found](env)
    problems = [*_impossible(launch), *_contradictions(launch, env)]
    if problems:
        raise UsageError(f"the job's environment contradicts itself: {'; '.join(problems)}")
    return launch


def launcher(environ: Environ | None = None) -> str | None:
    """The launcher that counts, by precedence; None outside of a job."""
    env = os.environ if environ is None else environ
    return next((name for name, is_there in _SIGNS.items() if is_there(env)), None)


def why_no_job(environ: Environ | None = None) -> str:
    """What is missing for this process to be a rank of a job."""
    env = os.environ if environ is None else environ
    partly = [name for name in ("RANK", "WORLD_SIZE", *_MASTER) if env.get(name)]
    if "RANK" in partly or "WORLD_SIZE" in partly:
        missing = [name for name in ("RANK", "WORLD_SIZE", *_MASTER) if name not in partly]
        return f"{' and '.join(partly)} are set and {' and '.join(missing)} missing"
    if any(name.startswith("PET_") for name in env):
        return "the PET_ variables are for torchrun: start the program with torchrun in the pod"
    if env.get("JOB_COMPLETION_INDEX"):
        return "JOB_COMPLETION_INDEX is set and WORLD_SIZE, MASTER_ADDR or MASTER_PORT missing"
    if env.get("SLURM_JOB_ID"):
        return "this is a Slurm allocation, but not a task of it: start the program with srun"
    return "this process was not started by torchrun, Slurm or Kubernetes"


def _is_slurm_task(env: Environ) -> bool:
    return "SLURM_PROCID" in env and env.get("SLURM_STEP_ID", "batch") not in _BATCH_STEPS


def _has(*names: str) -> Callable[[Environ], bool]:
    return lambda env: all(env.get(name) for name in names)


def _is_mpi_task(env: Environ) -> bool:
    return _has("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")(env) or _has("PMI_RANK", "PMI_SIZE")(env)


_SIGNS: dict[str, Callable[[Environ], bool]] = {
    "torchrun": _has("TORCHELASTIC_RUN_ID"),
    "environment": _has("RANK", "WORLD_SIZE", *_MASTER),
    "Slurm": _is_slurm_task,
    "mpirun": _is_mpi_task,
    "Kubernetes": _has("JOB_COMPLETION_INDEX", "WORLD_SIZE", *_MASTER),
}


# Reading each source


def _number(env: Environ, *names: str, source: str) -> int:
    """The first of these variables that is set, as a whole number from 0 on."""
    for name in names:
        text = env.get(name)
        if text:
            if text.strip().isdecimal():
                return int(text)
            raise UsageError(f"{name}={text!r} must be a whole number ({source} sets it)")
    raise UsageError(f"{source} started this process, and {' or '.join(names)} isn't set")


def _maybe_number(env: Environ, name: str, source: str) -> int | None:
    return _number(env, name, source=source) if env.get(name) else None


def _master_address(env: Environ, source: str, hint: str) -> str:
    address = env.get("MASTER_ADDR")
    if address:
        return address
    raise UsageError(f"{source} doesn't say where rank 0 runs: {hint}")


def _torchrun(env: Environ) -> Launch:
    source = "torchrun"
    return Launch(
        launcher=source,
        rank=_number(env, "RANK", source=source),
        world_size=_number(env, "WORLD_SIZE", source=source),
        local_rank=_number(env, "LOCAL_RANK", source=source),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE", source=source),
        master_addr=_master_address(env, source, "MASTER_ADDR isn't set"),
        master_port=_number(env, "MASTER_PORT", source=source),
        job=env["TORCHELASTIC_RUN_ID"],
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=env.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _environment(env: Environ) -> Launch:
    source = "the environment"
    return Launch(
        launcher="environment",
        rank=_number(env, "RANK", source=source),
        world_size=_number(env, "WORLD_SIZE", source=source),
        local_rank=_maybe_number(env, "LOCAL_RANK", source),
        local_world_size=_maybe_number(env, "LOCAL_WORLD_SIZE", source),
        master_addr=env["MASTER_ADDR"],
        master_port=_number(env, "MASTER_PORT", source=source),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _slurm(env: Environ) -> Launch:
    source = "Slurm"
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    node = _maybe_number(env, "SLURM_NODEID", source) or 0
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    job = _number(env, "SLURM_JOB_ID", "SLURM_JOBID", source=source)
    step = _number(env, "SLURM_STEP_ID", source=source)
    port = _maybe_number(env, "MASTER_PORT", source)
    return Launch(
        launcher=source,
        rank=_number(env, "SLURM_PROCID", source=source),
        world_size=_number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", source=source),
        local_rank=_number(env, "SLURM_LOCALID", source=source),
        local_world_size=tasks_on_node(tasks, node),
        master_addr=env.get("MASTER_ADDR") or first_host(nodes),
        master_port=_FIRST_SLURM_PORT + (job * 31 + step) % _SLURM_PORTS if port is None else port,
        job=f"{job}.{step}",
    )


def _mpirun(env: Environ) -> Launch:
    source = "mpirun"
    size = _number(env, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", source=source)
    open_mpi = bool(env.get("OMPI_COMM_WORLD_SIZE"))
    local_rank = _maybe_number(env, "OMPI_COMM_WORLD_LOCAL_RANK" if open_mpi else "MPI_LOCALRANKID", source)
    local_size = _maybe_number(env, "OMPI_COMM_WORLD_LOCAL_SIZE" if open_mpi else "MPI_LOCALNRANKS", source)
    hint = "give it with -x MASTER_ADDR=host -x MASTER_PORT=29500 (Open MPI) or -genv (MPICH)"
    return Launch(
        launcher=source,
        rank=_number(env, "OMPI_COMM_WORLD_RANK", "PMI_RANK", source=source),
        world_size=size,
        local_rank=local_rank,
        local_world_size=local_size,
        master_addr="127.0.0.1"
        if local_size == size and not env.get("MASTER_ADDR")
        else _master_address(env, source, hint),
        master_port=_number(env, "MASTER_PORT", source=f"{source} ({hint})"),
        job=env.get("PMIX_NAMESPACE", ""),
    )


def _kubernetes(env: Environ) -> Launch:
    source = "Kubernetes"
    return Launch(
        launcher=source,
        rank=_number(env, "JOB_COMPLETION_INDEX", source=source),
        world_size=_number(env, "WORLD_SIZE", source=source),
        local_rank=_maybe_number(env, "LOCAL_RANK", source),
        local_world_size=_maybe_number(env, "LOCAL_WORLD_SIZE", source),
        master_addr=env["MASTER_ADDR"],
        master_port=_number(env, "MASTER_PORT", source=source),
        job=env.get("JOBSET_NAME") or env.get("JOB_NAME") or "",
    )


_READERS: dict[str, Callable[[Environ], Launch]] = {
    "torchrun": _torchrun,
    "environment": _environment,
    "Slurm": _slurm,
    "mpirun": _mpirun,
    "Kubernetes": _kubernetes,
}


# What can't be


def _impossible(launch: Launch) -> list[str]:
    problems = []
    if launch.rank >= launch.world_size:
        problems.append(f"rank {launch.rank} of {launch.world_size} ranks; ranks count from 0")
    local, of = launch.local_rank, launch.local_world_size
    if local is not None and of is not None and local >= of:
        problems.append(f"local rank {local} of {of} ranks on this host; local ranks count from 0")
    if of is not None and of > launch.world_size:
        problems.append(f"{of} ranks on this host in a job of {launch.world_size}")
    return problems


def _contradictions(launch: Launch, env: Environ) -> list[str]:
    claims = [claim for read in (_slurm_claim, _open_mpi_claim, _pmi_claim) for claim in read(env)]
    problems = []
    for claim in claims:
        if claim.launcher != launch.launcher:
            problems += _contradiction(launch, claim, _agents(launch, env))
    if launch.launcher not in ("torchrun", "environment"):
        problems += _leftover(launch, env)
    return problems


def _leftover(launch: Launch, env: Environ) -> list[str]:
    """``RANK`` and ``WORLD_SIZE`` without a master are no source, but they may not say otherwise."""
    said = {"RANK": launch.rank, "WORLD_SIZE": launch.world_size, "LOCAL_RANK": launch.local_rank}
    return [
        f"{launch.launcher} says {value}, and {name}={env[name]}"
        for name, value in said.items()
        if env.get(name) and value is not None and env[name] != str(value)
    ]


def _agents(launch: Launch, env: Environ) -> int:
    """How many agents the ranks run under, as far as the environment says."""
    if launch.launcher == "torchrun" and env.get("GROUP_WORLD_SIZE", "").isdecimal():
        return int(env["GROUP_WORLD_SIZE"])
    return -(-launch.world_size // (launch.local_world_size or launch.world_size))


def _contradiction(launch: Launch, claim: _Claim, agents: int) -> list[str]:
    """A launcher's tasks may be the ranks themselves, the agents above them, or a single shell."""
    if claim.size == 1 and claim.rank == 0:
        return []
    if claim.size == launch.world_size and claim.rank == launch.rank:
        return []
    if claim.size == agents and (launch.launcher == "torchrun" or agents < launch.world_size):
        return []
    if claim.size == launch.world_size:
        return [
            f"{launch.launcher} says rank {launch.rank}, {claim.launcher} says {claim.rank} "
            f"({claim.rank_name})"
        ]
    if launch.launcher == "torchrun":
        return [
            f"{claim.launcher} started {claim.size} tasks ({claim.size_name}), and torchrun knows of "
            f"{agents} agent{'s' if agents > 1 else ''}: start one torchrun on each host, with --nnodes and "
            "one --rdzv-endpoint for all"
        ]
    return [
        f"{launch.launcher} says {launch.world_size} ranks, {claim.launcher} says {claim.size} "
        f"({claim.size_name})"
    ]


def _slurm_claim(env: Environ) -> Sequence[_Claim]:
    if not _is_slurm_task(env):
        return ()
    size_name = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    return _claim(env, "Slurm", "SLURM_PROCID", size_name)


def _open_mpi_claim(env: Environ) -> Sequence[_Claim]:
    return _claim(env, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _pmi_claim(env: Environ) -> Sequence[_Claim]:
    return _claim(env, "mpirun", "PMI_RANK", "PMI_SIZE")


def _claim(env: Environ, name: str, rank_name: str, size_name: str) -> Sequence[_Claim]:
    rank, size = env.get(rank_name, ""), env.get(size_name, "")
    if not rank.isdecimal() or not size.isdecimal():
        return ()
    return (_Claim(name, rank_name, int(rank), size_name, int(size)),)
