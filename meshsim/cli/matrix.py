"""``meshsim matrix``: few topologies that cover many combinations of sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from meshsim.errors import UsageError


def matrix_command(
    world_sizes: Annotated[str, typer.Option("--world-sizes", help="rank counts such as 1-16 or 1,2,4,8")],
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axes",
            help="such as dp_shard,tp=1,2,4: an axis without values takes all divisors; may be repeated",
        ),
    ] = None,
    strength: Annotated[
        int | None,
        typer.Option("--strength", help="cover every valid combination of so many axis sizes (2)"),
    ] = None,
    output: Annotated[str, typer.Option("--format", help="json, github, gitlab or text")] = "json",
    shards: Annotated[
        int | None, typer.Option("--shards", help="split over so many jobs, numbered from 0")
    ] = None,
    durations: Annotated[
        str | None,
        typer.Option("--durations", help="balance the shards by this file of `meshsim run --json`"),
    ] = None,
    every_size: Annotated[
        bool,
        typer.Option(
            "--every-world-size", help="have every rank count in it, whether a combination needs it or not"
        ),
    ] = False,
    ep_scope: Annotated[str, typer.Option("--ep-scope", help="stage or replica")] = "stage",
) -> None:
    """Print topologies that cover every valid combination of axis sizes, smallest first."""
    from meshsim.cli.console import write
    from meshsim.matrix.formats import FORMATS
    from meshsim.matrix.shards import balanced, read_durations
    from meshsim.selection import covering_matrix, parse_axes
    from meshsim.topologies import parse_world_sizes

    if output not in FORMATS:
        raise UsageError(f"--format {output} is unknown; known are {', '.join(FORMATS)}")
    if shards is not None and shards < 1:
        raise UsageError(f"--shards must be at least 1, got {shards}")
    sizes = parse_world_sizes(world_sizes)
    chosen = covering_matrix(sizes, parse_axes(axes), strength, every_size=every_size, ep_scope=ep_scope)
    keys = [(str(dims), size) for dims, size in chosen]
    numbers = balanced(keys, shards or 1, read_durations(durations) if durations else None)
    rows = [
        {"topology": topology, "world_size": size, "shard": shard}
        for (topology, size), shard in zip(keys, numbers, strict=True)
    ]
    write(FORMATS[output](rows, shards is not None))
