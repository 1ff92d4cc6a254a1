"""Running a method on every rank, outside of a marked test."""

from __future__ import annotations

import inspect
import os
import sys
import unittest
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.current import current_options
from meshsim.pytest_plugin.ranks.body import MeshBody
from meshsim.pytest_plugin.ranks.measured import coverage_settings
from meshsim.pytest_plugin.ranks.settings import RankSettings
from meshsim.pytest_plugin.ranks.values import RankValues
from meshsim.pytest_plugin.shown import shown_by


def run_on_ranks(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    topology: str,
    world_size: int | None,
    name: str,
    place: Callable[..., Any],
    timeout: float | None = None,
) -> None:
    """Call ``function`` with the arguments on every rank; raise what came of it, or return.

    ``place`` is the function whose frames are the test's own. Arguments that are recipes are made on the
    rank; of the others each rank gets its own copy.
    """
    from meshsim.pytest_plugin.concluding import conclusion
    from meshsim.pytest_plugin.options import DEFAULT_TIMEOUT
    from meshsim.pytest_plugin.output import prefixed
    from meshsim.pytest_plugin.running import rank_logs
    from meshsim.runner import build_request, run_request
    from meshsim.topologies import build_plan
    from meshsim.worlds.registry import world_for

    options = current_options()
    values = RankValues()
    for key, value in arguments.items():
        values.add(key, value, f"fixture {key!r}")
    values.check()
    body = MeshBody(function, tuple(arguments), values, _settings(name, place))
    request = build_request(
        body,
        build_plan(topology, world_size),
        seed=(options.seed if options else None) or 0,
        timeout=timeout or (options.timeout if options else None) or DEFAULT_TIMEOUT,
    )
    backend = (options.backend if options else None) or "auto"
    result = run_request(request, world_for(backend), name=name, topology=topology)
    if options is not None:
        options.results.append(result)
    logs = rank_logs(body, result)
    for report in result.ranks:
        sys.stdout.write(prefixed(report.rank, report.stdout) if report.stdout else "")
        printed = report.stderr + logs.get(report.rank, "")
        sys.stderr.write(prefixed(report.rank, printed) if printed else "")
    error = conclusion(result, pytest_private.function_place(place))
    if isinstance(error, pytest_private.outcomes.Skipped):
        raise unittest.SkipTest(str(error.msg))
    if error is not None and options is None:
        # unittest shows the traceback of this process only.
        raise AssertionError(str(shown_by(error))) from None
    if error is not None:
        raise error


def _settings(name: str, place: Callable[..., Any]) -> RankSettings:
    file, line = pytest_private.function_place(inspect.unwrap(place))
    return RankSettings(
        nodeid=name,
        name=name,
        function_file=file,
        function_line=line,
        rewritten=pytest_private.rewritten_modules(),
        invocation_dir=os.getcwd(),
        log_format="%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s",
        log_date_format="%H:%M:%S",
        warning_filters=tuple(warnings.filters),
        coverage=coverage_settings(),
        in_process=os.getpid(),
    )
