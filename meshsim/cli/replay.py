"""``meshsim replay``: a recorded run, run again and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from meshsim.cli.exit_codes import ExitCode


def replay_command(
    file: Annotated[str, typer.Argument(help="a recording, made with `meshsim run TARGET --record FILE`")],
    backend: Annotated[
        str, typer.Option("--backend", "-b", help="fake (default), gloo, nccl, hccl or auto")
    ] = "fake",
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="seconds for the run; without it the recorded ones")
    ] = None,
    allow_changed: Annotated[
        bool,
        typer.Option("--allow-changed", help="compare although the scenario's source has changed since"),
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", help="write the differences and the new run to this file")
    ] = None,
) -> int:
    """Run a recorded run again in any world; compare plan, verdict, trace and returns.

    Exit code 0: the same; 1: something differs, and what differs first is shown with its rank.
    """
    from meshsim.cli.console import write
    from meshsim.recordings.running import replay
    from meshsim.reports.failure_text import failure_text
    from meshsim.reports.files import check_writable, write_json

    if json_file is not None:
        check_writable(json_file)
    replayed = replay(file, backend=backend, timeout=timeout, allow_changed=allow_changed)
    write(str(replayed))
    for difference in replayed.differences[1:_SHOWN]:
        write(f"  {difference}")
    if replayed.result.failed and not replayed.ok:
        write("\n" + failure_text(replayed.result))
    if json_file is not None and replayed.result.is_complete:
        write_json(json_file, replayed.to_json())
    if replayed.result.not_run:
        return ExitCode.CANNOT_RUN
    return ExitCode.PASSED if replayed.ok else ExitCode.FAILED


_SHOWN = 10
