"""The application, and how errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from meshsim.cli.doctor import doctor_command
from meshsim.cli.exit_codes import ExitCode
from meshsim.cli.listing import list_command
from meshsim.cli.matrix import matrix_command
from meshsim.cli.replay import replay_command
from meshsim.cli.run import run_command
from meshsim.cli.show import show_command
from meshsim.cli.smoke import smoke_command
from meshsim.errors import CannotRun, UsageError
from meshsim.worlds.speaking import speaks_for_all

app = typer.Typer(
    name="meshsim",
    help="Run distributed PyTorch code on any device mesh: in this process, on gloo workers, on a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run_command)
app.command("list")(list_command)
app.command("show")(show_command)
app.command("replay")(replay_command)
app.command("matrix")(matrix_command)
app.command("smoke")(smoke_command)
app.command("doctor")(doctor_command)

# Typer raises the errors of click, or of its own copy of it, and exports only some of their classes.
_COMMAND_LINE_ERROR: type[Exception] = next(
    kind
    for kind in typer.BadParameter.__mro__
    if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. ``arguments`` default to the process's own."""
    try:
        command = typer.main.get_command(app)
        code = command.main(arguments and list(arguments), prog_name="meshsim", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except CannotRun as error:
        _tell_job(error)
        _say(str(error))
        return ExitCode.CANNOT_RUN
    except UsageError as error:
        _tell_job(error)
        _say(str(error))
        return ExitCode.WRONG_USE
    except _COMMAND_LINE_ERROR as error:
        return _wrong_command_line(error)
    except Exception as error:
        from meshlib import MeshError

        if not isinstance(error, MeshError):
            raise
        _tell_job(error)
        _say(str(error))
        return ExitCode.WRONG_USE
    if code == ExitCode.INTERRUPTED:  # typer may have made Ctrl-C a code itself
        _say("interrupted")
    return ExitCode.PASSED if code is None else int(code)


def _wrong_command_line(error: BaseException) -> int:
    text = str(getattr(error, "format_message", lambda: str(error))())
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(text + "\n")
        return ExitCode.WRONG_USE
    command = context.command_path if context is not None else "meshsim"
    _say(f"{text.rstrip('.')}; `{command} --help` lists what there is")
    return ExitCode.WRONG_USE


def _tell_job(error: Exception) -> None:
    """Let the other ranks of a job know why this one doesn't take part, if it was about to."""
    worlds = sys.modules.get("meshsim.worlds.cluster.world")
    if worlds is not None:
        worlds.tell_job(error)


def _say(text: str) -> None:
    """One line, also for an error that lists several problems. Of the ranks of a job one says it."""
    if not speaks_for_all():
        return
    head, *others = (line.strip().removeprefix("- ") for line in text.splitlines() if line.strip())
    line = f"{head} {'; '.join(others)}" if others else head
    sys.stderr.write(f"meshsim: {line}\n")
