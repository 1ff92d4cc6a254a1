"""``meshsim doctor``: what this machine can run, and why not the rest."""

from __future__ import annotations

import os
import platform


def doctor_command() -> None:
    """Say what this machine can run, and why not the rest."""
    import psutil
    import torch

    import meshsim.worlds.registry as worlds
    from meshsim.cli.console import write
    from meshsim.reports.tables import aligned

    accelerator = torch.accelerator.current_accelerator()
    devices = f"{torch.accelerator.device_count()} of type {accelerator.type}" if accelerator else "none"
    job = worlds.launcher()
    facts = [
        ("Python", platform.python_version()),
        ("torch", torch.__version__),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("CPU cores", str(os.cpu_count())),
        ("memory", f"{psutil.virtual_memory().available / 2**30:.1f} GiB free"),
        ("accelerators", devices),
        ("launched by", job or "no launcher"),
        ("--backend auto", worlds.auto_backend()),
    ]
    write(aligned(("what", "here"), [*facts, *_place_in_job()]))
    rows = []
    for backend in worlds.BACKENDS:
        reason = worlds.why_unavailable(backend) or _missing_in_job(backend, job)
        rows.append((backend, "no" if reason else "yes", reason or ""))
    write("\n" + aligned(("backend", "runs here", "why not"), rows))


def _place_in_job() -> list[tuple[str, str]]:
    """What the launcher says of this process, and the devices that it sees. The other ranks aren't asked."""
    from meshsim.errors import UsageError
    from meshsim.worlds.cluster.facts import host_name
    from meshsim.worlds.cluster.launch import detect

    visible = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
    shown = [(name, os.environ[name]) for name in visible if name in os.environ]
    try:
        launch = detect()
    except UsageError as error:
        return [*shown, ("the job", str(error))]
    if launch is None:
        return shown
    local = "" if launch.local_rank is None else f", local rank {launch.local_rank}"
    return [
        *shown,
        ("the job", f"rank {launch.rank} of {launch.world_size}{local}, on host {host_name()}"),
        ("ranks meet at", f"{launch.master_addr}:{launch.master_port}"),
    ]


def _missing_in_job(backend: str, job: str | None) -> str:
    """What this host lacks to run an accelerator's backend as one rank."""
    from meshsim.worlds.cluster.backends import cluster_backend

    return cluster_backend(backend).problem() if job is not None and backend != "fake" else ""
