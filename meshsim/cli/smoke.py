"""``meshsim smoke``: what an operator starts before a big job."""

from __future__ import annotations

from typing import Annotated

import typer

from meshsim.cli.exit_codes import ExitCode


def smoke_command(
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            help="of the job that is to follow, such as dp_shard=4,tp=8; an unset "
            "dp follows from the job's ranks",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option("--backend", "-b", help="auto (the job's accelerator; gloo on one machine), or a name"),
    ] = "auto",
    budget: Annotated[
        float | None, typer.Option("--budget", help="seconds; what doesn't fit is reported as not run")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="the largest array of the bandwidth stage")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the scenarios' random numbers")] = 0,
    json_file: Annotated[
        str | None, typer.Option("--json", help="write all that was found to this file")
    ] = None,
    junit_file: Annotated[str | None, typer.Option("--junit", help="write a JUnit XML file")] = None,
) -> int:
    """Check a job's ranks, hosts, devices and links before a big run; on one machine on gloo workers."""
    from meshsim.cli.console import write
    from meshsim.reports.files import check_writable, write_json, write_text
    from meshsim.smoke.outcome import StageState
    from meshsim.smoke.report import smoke_junit, smoke_text
    from meshsim.smoke.running import run_smoke

    for path in (json_file, junit_file):
        if path is not None:
            check_writable(path)
    report = run_smoke(topology, backend=backend, budget=budget, max_bytes=max_bytes, seed=seed)
    write(smoke_text(report))
    if json_file is not None:
        write_json(json_file, report.to_json())
    if junit_file is not None:
        write_text(junit_file, smoke_junit(report))
    if report.stages[0].state is StageState.FAILED:
        return ExitCode.CANNOT_RUN
    return ExitCode.PASSED if report.ok else ExitCode.FAILED
