"""``meshsim list``: the built-in scenarios."""

from __future__ import annotations


def list_command() -> None:
    """List the built-in scenarios."""
    from meshsim.cli.console import write
    from meshsim.reports.tables import aligned
    from meshsim.scenarios import describe_all

    rows = [(name, summary) for name, summary in describe_all()]
    write(aligned(("scenario", "what it checks"), rows))
