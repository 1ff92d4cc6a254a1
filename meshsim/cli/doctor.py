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
    write(aligned(("what", "here"), facts))
    rows = []
    for backend in worlds.BACKENDS:
        reason = worlds.why_unavailable(backend)
        rows.append((backend, "no" if reason else "yes", reason or ""))
    write("\n" + aligned(("backend", "runs here", "why not"), rows))
