"""Jobs on this machine: processes with a launcher's variables, or real torchrun agents."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAUNCHER_PREFIXES = (
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "TORCHELASTIC_",
    "PET_",
    "JOB_",
    "JOBSET_",
    "GROUP_",
    "ROLE_",
)
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LONGEST = 120


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment outside of any job."""
    return {
        name: value
        for name, value in environ.items()
        if name not in LAUNCHER_NAMES and not name.startswith(LAUNCHER_PREFIXES)
    }


@dataclass
class Ended:
    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Processes:
    """Starts processes and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, arguments: Sequence[str], **environ: str) -> subprocess.Popen[str]:
        environment = without_launcher(os.environ) | {
            "OMP_NUM_THREADS": "1",
            "MESHSIM_JOIN_TIMEOUT": "60",
            **environ,
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            text=True,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def finish(self, processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
        outputs = [process.communicate(timeout=_LONGEST) for process in processes]
        return [Ended(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]

    def job(
        self,
        ranks: int,
        arguments: Sequence[str],
        *,
        hosts: int = 1,
        each: Callable[[int], dict[str, str]] | None = None,
    ) -> list[Ended]:
        """The ranks of a job by environment variables, as PyTorchJob sets them; evenly over the hosts."""
        port, local = str(free_port()), ranks // hosts
        started = [
            self.start(
                arguments,
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_RANK=str(rank % local),
                LOCAL_WORLD_SIZE=str(local),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                MESHSIM_HOST=f"host-{'abcdefgh'[rank // local]}",
                **(each(rank) if each is not None else {}),
            )
            for rank in range(ranks)
        ]
        return self.finish(started)

    def agents(self, hosts: int, local: int, arguments: Sequence[str]) -> list[Ended]:
        """One torchrun agent for each host."""
        port = str(free_port())
        started = [
            self.start(
                [
                    *("-m", "torch.distributed.run", "--nnodes", str(hosts), "--node-rank", str(host)),
                    *("--nproc-per-node", str(local), "--master-addr", "127.0.0.1", "--master-port", port),
                    *arguments,
                ],
                MESHSIM_HOST=f"host-{'abcdefgh'[host]}",
            )
            for host in range(hosts)
        ]
        return self.finish(started)

    def end(self) -> None:
        for process in self._started:
            with process:
                if process.poll() is None:
                    process.kill()
