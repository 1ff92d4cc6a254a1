"""``meshsim show``: the mesh of a topology, drawn."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from meshsim.errors import UsageError


def show_command(
    topology: Annotated[str, typer.Argument(help="such as dp=2,tp=2,pp=2")],
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", help="ranks; without it the topology's own sizes make the world"),
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="where this rank stands, and its groups")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the plan and its groups as JSON")] = False,
    svg_file: Annotated[str | None, typer.Option("--svg", help="write a drawing to this file")] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="rank order, outermost axis first; default pp,dp,cp,tp")
    ] = None,
    ep_scope: Annotated[str, typer.Option("--ep-scope", help="stage or replica")] = "stage",
) -> None:
    """Draw a mesh: its axes, the grid of its ranks, the groups along each axis."""
    from meshsim.cli.console import write
    from meshsim.reports.files import check_writable, write_text
    from meshsim.reports.mesh_svg import mesh_svg
    from meshsim.reports.mesh_text import mesh_data, mesh_text, rank_text
    from meshsim.topologies import build_plan, parse_order

    plan = build_plan(topology, world_size, order=parse_order(order), ep_scope=ep_scope)
    if rank is not None and not 0 <= rank < plan.world_size:
        raise UsageError(f"--rank {rank} isn't in this mesh; its ranks are 0 to {plan.world_size - 1}")
    if svg_file is not None:
        check_writable(svg_file)
        write_text(svg_file, mesh_svg(plan))
    if as_json:
        write(json.dumps(mesh_data(plan, rank), indent=1))
    elif rank is not None:
        write(rank_text(plan, rank))
    else:
        write(mesh_text(plan))
