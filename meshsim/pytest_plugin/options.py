"""The plugin's command-line options, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKENDS = ("fake", "gloo", "nccl", "hccl", "auto")
DEFAULT_TIMEOUT = 60.0
"""Seconds for one test's run, unless it or the command line says otherwise."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options of ``pytest --help``'s section "mesh tests"."""
    group = parser.getgroup("mesh", "mesh tests (meshsim)")
    group.addoption(
        "--mesh-backend",
        choices=_BACKENDS,
        default=None,
        help="where mesh tests run; default auto: the job's accelerator backend under torchrun or Slurm, "
        "fake otherwise. A test whose marker names another backend is skipped",
    )
    group.addoption(
        "--mesh-topology",
        action="append",
        default=[],
        metavar="T",
        help="run every mesh test on this topology, such as dp=2,tp=2, in place of its own; repeatable",
    )
    group.addoption(
        "--mesh-world-sizes",
        default=None,
        metavar="SIZES",
        help="run every mesh test on every topology of these rank counts, such as 1-8 or 1,2,4",
    )
    group.addoption(
        "--mesh-timeout",
        type=float,
        default=None,
        metavar="S",
        help=f"seconds for one run, unless the test's marker has a timeout; default {DEFAULT_TIMEOUT:g}",
    )
    group.addoption(
        "--mesh-seed", type=int, default=None, metavar="N", help="seed of every run; goes before a marker's"
    )
    group.addoption(
        "--mesh-record", default=None, metavar="DIR", help="write each run's result as JSON into this folder"
    )
    group.addoption(
        "--mesh-report", default=None, metavar="FILE.html", help="write an HTML page about all runs"
    )
    group.addoption(
        "--mesh-ledger",
        default=None,
        metavar="FILE",
        help="write which test ran on which topology and backend; "
        "`python -m meshsim.pytest_plugin.ledger FILE...` merges those of several jobs",
    )
    group.addoption(
        "--mesh-show-ranks",
        default=None,
        metavar="RANKS",
        help="show only the output of these ranks, such as 0,3 or 4-7",
    )
    group.addoption(
        "--mesh-strict",
        action="store_true",
        help="a mesh test that can't run here fails instead of being skipped, and so does the session when "
        "a collected one never ran",
    )


@dataclass(frozen=True)
class MeshOptions:
    """The options of one session, checked."""

    backend: str | None
    topologies: tuple[str, ...]
    world_sizes: tuple[int, ...] | None
    timeout: float | None
    seed: int | None
    record: str | None
    report: str | None
    ledger: str | None
    show_ranks: frozenset[int] | None
    strict: bool


def read_options(config: pytest.Config) -> MeshOptions:
    """Check the options; ``pytest.UsageError`` for one that can't be used."""
    sizes = config.getoption("--mesh-world-sizes")
    topologies: Sequence[str] = config.getoption("--mesh-topology")
    if sizes is not None and topologies:
        raise pytest.UsageError("give --mesh-topology or --mesh-world-sizes, not both")
    timeout = config.getoption("--mesh-timeout")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise pytest.UsageError(f"--mesh-timeout must be a positive number of seconds, got {timeout:g}")
    seed = config.getoption("--mesh-seed")
    if seed is not None and not 0 <= seed < 2**63:
        raise pytest.UsageError(f"--mesh-seed must be from 0 to 2**63 - 1, got {seed}")
    return MeshOptions(
        backend=config.getoption("--mesh-backend"),
        topologies=tuple(topologies),
        world_sizes=None if sizes is None else _world_sizes(sizes),
        timeout=timeout,
        seed=seed,
        record=config.getoption("--mesh-record"),
        report=_report(config.getoption("--mesh-report")),
        ledger=config.getoption("--mesh-ledger"),
        show_ranks=_ranks(config.getoption("--mesh-show-ranks")),
        strict=bool(config.getoption("--mesh-strict")),
    )


def _world_sizes(text: str) -> tuple[int, ...]:
    from meshsim.errors import UsageError
    from meshsim.topologies import parse_world_sizes

    try:
        return parse_world_sizes(text)
    except UsageError as error:
        raise pytest.UsageError(f"--mesh-world-sizes: {error}") from None


def _report(path: str | None) -> str | None:
    if path is not None:
        from meshsim.pytest_plugin.html_report import check_html_report

        check_html_report(path)
    return path


def _ranks(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise pytest.UsageError(
                f"--mesh-show-ranks {text!r} can't be read; give ranks, such as 0,3 or 4-7"
            )
        ranks.update(range(int(first), int(last or first) + 1))
    return frozenset(ranks)
