"""Running a mesh test: from the item to a run's result."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from meshsim.errors import CannotRun, UsageError
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.collecting import MeshTest
from meshsim.pytest_plugin.marker import PLAN_SETTINGS, plan_of
from meshsim.pytest_plugin.options import DEFAULT_TIMEOUT, MeshOptions
from meshsim.pytest_plugin.property_tests import DRAWN, drawn_case, inner_test, is_property_test
from meshsim.worlds.registry import launcher

if TYPE_CHECKING:
    from meshsim.pytest_plugin.ranks.body import MeshBody
    from meshsim.pytest_plugin.ranks.settings import RankSettings
    from meshsim.result import RunResult

_OWN_SETTINGS = ("backend", "timeout", "seed", *PLAN_SETTINGS)
_WARM = 8
"""Workers that are started before the first test; more are forked when a test needs them."""
_TRUNCATION_INI = ("truncation_limit_lines", "truncation_limit_chars", "assertion_text_diff_style")


@dataclass(frozen=True)
class Ran:
    """A run, and what each rank logged."""

    result: RunResult
    logs: Mapping[int, str]


def run_item(
    item: pytest.Function,
    test: MeshTest,
    options: MeshOptions,
    backend: str,
    example: Mapping[str, Any] | None = None,
) -> Ran:
    """Run the item's body on every rank, of a property test with one example.

    UsageError for what can't be sent to the ranks.
    """
    from meshsim.pytest_plugin.arguments import example_body, mesh_body
    from meshsim.runner import build_request, run_request
    from meshsim.worlds.registry import world_for

    settings = rank_settings(item)
    body = mesh_body(item, settings) if example is None else example_body(item, settings, example)
    case = test.case if test.case is not DRAWN else drawn_case(example or {})
    plan = plan_of(case, test.settings)
    request = build_request(
        body,
        plan,
        seed=run_seed(test, options),
        timeout=test.settings.get("timeout") or options.timeout or DEFAULT_TIMEOUT,
        **{name: value for name, value in test.settings.items() if name not in _OWN_SETTINGS},
    )
    with _without_own_log_handlers(item):
        result = run_request(request, world_for(backend), name=item.nodeid, topology=case.topology)
    return Ran(result, rank_logs(body, result))


def run_seed(test: MeshTest, options: MeshOptions) -> int:
    """The command line's seed goes first: it is how a run is repeated."""
    if options.seed is not None:
        return options.seed
    return int(test.settings.get("seed", 0))


def backend_of(test: MeshTest, options: MeshOptions) -> tuple[str, str | None]:
    """The backend that a test runs on here, and why it can't run, if it can't."""
    from meshsim.worlds.registry import check_backend, why_unavailable

    wanted = test.settings.get("backend")
    chosen = check_backend(options.backend or wanted or "auto")
    if wanted is not None and wanted != "auto" and wanted != chosen:
        return chosen, f"needs the {wanted} backend, and --mesh-backend is {chosen}"
    have = ranks_of_job(chosen) if launcher() is not None else None
    if have is not None and have < test.case.world_size:
        need = test.case.world_size
        return chosen, f"needs {need} ranks, have {have}"
    try:
        reason = why_unavailable(chosen)
    except (CannotRun, UsageError) as error:
        reason = str(error)
    return chosen, f"can't run on {chosen}: {reason}" if reason else None


def start_up(tests: Collection[MeshTest], options: MeshOptions) -> None:
    """Load torch, and have the workers load it, before the first test needs them."""
    most: dict[str, int] = {}
    for test in tests:
        backend, reason = backend_of(test, options)
        if reason is None:
            most[backend] = max(most.get(backend, 0), test.case.world_size)
    if most.get("gloo") and launcher() is None:
        from meshsim.worlds.gloo.world import warm_up

        warm_up(min(most["gloo"], _WARM))
    if most:
        import torch.distributed

        torch.distributed.is_available()


def ranks_of_job(backend: str) -> int | None:
    """How many ranks the job has that a launcher started; None for a world that isn't made of them."""
    if backend == "fake":
        return None
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def rank_settings(item: pytest.Function) -> RankSettings:
    """What the ranks need to know of this pytest run and of the item."""
    from meshsim.pytest_plugin.ranks.measured import coverage_settings
    from meshsim.pytest_plugin.ranks.settings import RankSettings

    config = item.config
    file, line = function_place(item)
    log_level, log_format, log_date_format = pytest_private.log_settings(config)
    return RankSettings(
        nodeid=item.nodeid,
        name=item.name,
        function_file=file,
        function_line=line,
        rewritten=pytest_private.rewritten_modules(),
        style=config.getoption("tbstyle", "auto"),
        show_locals=bool(config.getoption("showlocals", False)),
        full_trace=bool(config.getoption("fulltrace", False)),
        verbosity=config.get_verbosity(),
        assertion_verbosity=config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS),
        ini={name: pytest_private.ini_value(config, name) for name in _TRUNCATION_INI},
        invocation_dir=str(config.invocation_params.dir),
        log_level=log_level,
        log_format=log_format,
        log_date_format=log_date_format,
        warning_filters=tuple(warnings.filters),
        coverage=coverage_settings(),
        in_process=os.getpid(),
    )


@contextlib.contextmanager
def _without_own_log_handlers(item: pytest.Item) -> Iterator[None]:
    """pytest's handlers would mix up what ranks of this process log."""
    plugin = pytest_private.logging_plugin(item.config)
    root = logging.getLogger()
    own: list[Any] = [] if plugin is None else [plugin.caplog_handler, plugin.report_handler]
    removed = [handler for handler in root.handlers if handler in own]
    for handler in removed:
        root.removeHandler(handler)
    try:
        yield
    finally:
        for handler in removed:
            root.addHandler(handler)


def rank_logs(body: MeshBody, result: RunResult) -> dict[int, str]:
    """Each rank's log; of a rank that was stopped, where it ran in this process, what it had logged."""
    from meshsim.pytest_plugin.outcomes import outcome_of

    logs = {rank: harness.logs() for rank, harness in body.harnesses.items()}
    for report in result.ranks:
        outcome = outcome_of(report)
        if outcome is not None:
            logs[report.rank] = outcome.logs
    return logs


def function_place(item: pytest.Function) -> tuple[str, int]:
    """File and line of an item's own function, from 0 on."""
    return pytest_private.function_place(inner_test(item.obj) if is_property_test(item.obj) else item.obj)
