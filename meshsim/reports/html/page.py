"""The page itself: template, styles, scripts and data in one file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from meshsim.reports.files import write_text
from meshsim.reports.html.grid import OUTCOMES, grid_of
from meshsim.reports.html.run_data import PageRun, run_data
from meshsim.result import RunResult

_PACKAGE = "meshsim.reports.html"
_SCRIPTS = (
    "dom", "theme", "data", "selection", "grid", "verdict", "cycle", "mesh", "calls", "timeline_axes",
    "timeline", "rank", "lines", "run",
)  # fmt: skip
"""In order; they share one module scope."""

Run = RunResult | Mapping[str, Any] | PageRun


def write_html(path: str | os.PathLike[str], runs: Iterable[Run]) -> None:
    """Write the page about these runs: results, the JSON of results, or both.

    Raises ``UsageError`` where the file can't be written, or where a mapping is no run.
    """
    write_text(path, html_page(runs))


def html_page(runs: Iterable[Run]) -> str:
    """The page's text. Whatever came from users is escaped; data can't end the element that holds them."""
    pages = [run_data(run) for run in runs]
    meshes = {run.head["plan"]: run.mesh for run in pages}
    places = {digest: place for place, digest in enumerate(meshes)}
    style, script = _style(), _script()
    return _environment().get_template("page.html.j2").render(
        grid=grid_of(pages),
        outcomes=OUTCOMES,
        heads=[{**run.head, "plan": places[run.head["plan"]]} for run in pages],
        bodies=[run.body for run in pages],
        meshes=list(meshes.values()),
        style=Markup(style),  # ours, and no data in it
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    ) + "\n"  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(_PACKAGE, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


@cache
def _style() -> str:
    return _source("style.css")


@cache
def _script() -> str:
    return "\n".join(_source(f"scripts/{name}.js") for name in _SCRIPTS)


def _source(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0]


def _hash(text: str) -> str:
    """For the page's content security policy: only this script and this style count."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
