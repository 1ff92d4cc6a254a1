"""Everything that the plugin takes from pytest's private parts, in one place.

Tried on pytest 8.3 to 9.2. pytest's own representation of failures, its rewriting of assertions and its log
handler have no public way in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest import outcomes
from _pytest._code import Code, ExceptionInfo
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
    filter_traceback,
)
from _pytest.assertion import pytest_assertrepr_compare as own_comparison
from _pytest.assertion import rewrite, truncate, util
from _pytest.compat import get_real_func as _real
from _pytest.logging import LogCaptureFixture, LogCaptureHandler, caplog_handler_key, caplog_records_key

__all__ = ["ExceptionChainRepr", "LogCaptureHandler", "outcomes"]


def function_place(function: Any) -> tuple[str, int]:
    """File and line (from 0 on) of a test function, below its decorators' wrappers."""
    code = Code.from_function(real_function(function))
    return str(code.path), code.firstlineno


def real_function(function: Any) -> Any:
    """The function below its decorators' wrappers."""
    return _real(function)  # type: ignore[no-untyped-call]


def is_parameter(item: pytest.Function, name: str) -> bool:
    """Whether an argument is parametrised directly, not a fixture's value. Tried on 9.2."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or name not in callspec.params:
        return False
    definitions = item._fixtureinfo.name2fixturedefs.get(name) or ()
    return all(one.func.__name__ == "get_direct_param_fixture_func" for one in definitions)


def direct_parameters(definition: pytest.Function) -> dict[str, list[Any]]:
    """The values of each argument that ``parametrize`` markers give directly. Tried on 9.2."""
    from _pytest.mark.structures import ParameterSet

    found: dict[str, list[Any]] = {}
    for mark in definition.iter_markers("parametrize"):
        indirect = mark.kwargs.get("indirect", False)
        if indirect is True or len(mark.args) < 2:
            continue
        names, force_tuple = ParameterSet._parse_parametrize_args(*mark.args[:2])
        for one in ParameterSet._parse_parametrize_parameters(mark.args[1], force_tuple):
            for name, value in zip(names, one.values, strict=False):
                if name not in (indirect or ()):
                    found.setdefault(name, []).append(value)
    return found


# Failures


def long_representation(
    error: BaseException,
    *,
    function_file: str,
    function_line: int,
    style: str,
    show_locals: bool,
    full_trace: bool,
    verbosity: int,
    absolute_paths: bool,
    hidden_arguments: Container[str] = (),
) -> ExceptionChainRepr:
    """What ``Function.repr_failure`` makes of an exception, without an item. Tried on 9.2."""
    if isinstance(error, outcomes.Failed) and not error.pytrace:
        style = "value"

    def shown(excinfo: ExceptionInfo[BaseException]) -> Any:
        return _shown_frames(excinfo, function_file, function_line, middle_short=style == "auto")

    made = ExceptionInfo.from_exception(error).getrepr(
        funcargs=True,
        abspath=absolute_paths,
        showlocals=show_locals,
        style="long" if style == "auto" or full_trace else style,  # type: ignore[arg-type]
        tbfilter=False if full_trace else shown,
        truncate_locals=verbosity <= 1,
        truncate_args=verbosity <= 2,
    )
    if not isinstance(made, ExceptionChainRepr):
        made = ExceptionChainRepr([(made.reprtraceback, made.reprcrash, None)])
    for traceback, _, _ in made.chain:
        for entry in traceback.reprentries:
            arguments = getattr(entry, "reprfuncargs", None)
            if arguments is not None:
                arguments.args = [pair for pair in arguments.args if pair[0] not in hidden_arguments]
    return made


def _shown_frames(excinfo: ExceptionInfo[BaseException], file: str, line: int, *, middle_short: bool) -> Any:
    whole = excinfo.traceback
    path = Path(file)
    frames = whole.cut(path=path, firstlineno=line)
    if frames == whole:
        frames = whole.cut(path=path)
    if frames == whole:
        frames = _without_harness(whole.filter(filter_traceback)) or whole
    frames = frames.filter(excinfo)
    # unittest marks its own modules so; pytest hides them likewise.
    frames = frames.filter(lambda entry: not entry.frame.f_globals.get("__unittest")) or frames
    if middle_short and len(frames) > 2:
        middle = (entry.with_repr_style("short") for entry in frames[1:-1])
        frames = type(whole)((frames[0], *middle, frames[-1]))
    return frames


def _without_harness(frames: Any) -> Any:
    from meshsim.source import is_harness_file

    return frames.filter(lambda entry: not is_harness_file(str(entry.path)))


def with_ranks(shown: ExceptionChainRepr, ranks: str, head: str = "") -> ExceptionChainRepr:
    """A representation with the ranks in its summary line, and a line above it."""
    chain = list(shown.chain)
    traceback, crash, description = chain[-1]
    if crash is not None:
        crash = crash_location(crash.path, crash.lineno, f"{ranks}: {crash.message.removeprefix('Failed: ')}")
    chain[-1] = (traceback, crash, description)
    above = [(text_representation(head), None, None)] if head else []
    return ExceptionChainRepr([*above, *chain])


def text_representation(text: str) -> ReprTraceback:
    """Plain text in the place of a traceback."""
    return ReprTraceback([ReprEntryNative([f"{text}\n"])], None, style="native")


def crash_location(path: str, lineno: int, message: str) -> ReprFileLocation:
    """The place and the line that pytest's short summary shows."""
    return ReprFileLocation(path, lineno, message)


# Skips


def skipped_at_test(reason: str) -> BaseException:
    """What ``pytest.skip`` raises, reported at the test's own line."""
    return outcomes.Skipped(reason, _use_item_location=True)


# Assertions


def rewrite_asserts(tree: Any, source: bytes, path: str) -> None:
    """Rewrite a module's assert statements in place."""
    rewrite.rewrite_asserts(tree, source, path)


class _Configuration:
    """As much of ``pytest.Config`` as explaining a comparison asks for."""

    def __init__(self, assertion_verbosity: int, verbosity: int, ini: Mapping[str, Any]) -> None:
        self._assertions = assertion_verbosity
        self._general = verbosity
        self._ini = ini
        self.pluginmanager = self
        self.option = self

    @property
    def verbose(self) -> int:
        return self._general

    def has_plugin(self, name: str) -> bool:
        return False

    def get_verbosity(self, kind: str | None = None) -> int:
        return self._assertions if kind == "assertions" else self._general

    def getini(self, name: str) -> Any:
        return self._ini.get(name)

    def getoption(self, name: str, default: Any = None) -> Any:
        return self._general if name == "verbose" else default

    getvalue = getoption


class _Item:
    def __init__(self, config: _Configuration) -> None:
        self.config = config


@contextlib.contextmanager
def explained_comparisons(assertion_verbosity: int, verbosity: int, ini: Mapping[str, Any]) -> Iterator[None]:
    """Do for a rank in a worker process what pytest does around each test. Tried on 9.2."""
    config: Any = _Configuration(assertion_verbosity, verbosity, ini)

    def explain(op: str, left: object, right: object) -> str | None:
        lines = own_comparison(config=config, op=op, left=left, right=right)
        if not lines:
            return None
        lines = [line.replace("\n", "\\n") for line in _truncated(lines, config)]
        return "\n~".join(lines).replace("%", "%%")

    before = util._reprcompare, util._assertion_pass, util._config
    util._reprcompare, util._assertion_pass, util._config = explain, None, config
    try:
        yield
    finally:
        util._reprcompare, util._assertion_pass, util._config = before


def comparison_message(op: str, left: object, right: object) -> str:
    """The message that a rewritten ``assert left op right`` has."""
    custom = util._reprcompare(op, left, right) if util._reprcompare is not None else None
    if custom is None:
        return f"assert {rewrite._saferepr(left)} {op} {rewrite._saferepr(right)}"
    return util.format_explanation(f"assert {custom}").replace("%%", "%")


def _truncated(lines: Any, config: Any) -> list[str]:
    materialize = getattr(truncate, "materialize_with_truncation", None)
    if materialize is not None:
        return list(materialize(lines, config))
    # pytest before 9.2
    return list(truncate.truncate_if_required(list(lines), _Item(config)))  # type: ignore[attr-defined]


def rewritten_modules() -> dict[str, str]:
    """Names and files of the modules whose assertions pytest has rewritten so far."""
    import sys

    for finder in sys.meta_path:
        if isinstance(finder, rewrite.AssertionRewritingHook):
            return {
                name: str(path)
                for name, path in finder._rewritten_names.items()
                if name.partition(".")[0] not in ("meshsim", "meshlib")
            }
    return {}


# Logs


class _StashHolder:
    def __init__(self, handler: LogCaptureHandler) -> None:
        self.stash = pytest.Stash()
        self.stash[caplog_handler_key] = handler
        self.stash[caplog_records_key] = {"call": handler.records}


def log_capture_fixture(handler: LogCaptureHandler) -> LogCaptureFixture:
    """A ``caplog`` on a handler of one's own."""
    return LogCaptureFixture(_StashHolder(handler), _ispytest=True)  # type: ignore[arg-type]


def end_log_capture(fixture: LogCaptureFixture) -> None:
    """Put the levels back that a ``caplog`` has set."""
    fixture._finalize()


def log_levels_of(fixture: LogCaptureFixture) -> dict[str | None, int]:
    """The loggers whose level a ``caplog`` has set, with the levels before."""
    return fixture._initial_logger_levels


def log_formatter(log_format: str, date_format: str) -> Any:
    """pytest's own, which knows microseconds."""
    from _pytest.logging import DatetimeFormatter

    return DatetimeFormatter(log_format, datefmt=date_format)


def logging_plugin(config: pytest.Config) -> Any:
    """pytest's logging plugin, or None where it is switched off."""
    return config.pluginmanager.getplugin("logging-plugin")


# JUnit


class JunitWriter:
    """pytest's JUnit writer: where it writes, and the reporters of the tests that are finished."""

    def __init__(self, xml: Any) -> None:
        self._xml = xml
        self.path: str = xml.logfile

    def finished(self) -> list[Any]:
        """Each has ``to_xml()``. Those of tests that are under way are left out. Tried on 9.2."""
        under_way = set(map(id, self._xml.node_reporters.values()))
        return [one for one in self._xml.node_reporters_ordered if id(one) not in under_way]


def junit_of(config: pytest.Config) -> JunitWriter | None:
    """The writer of ``--junit-xml``, where that was given and this process writes it."""
    from _pytest.junitxml import xml_key

    xml = config.stash.get(xml_key, None)
    return None if xml is None else JunitWriter(xml)


# Configuration


def known_ini(config: pytest.Config) -> dict[str, Any]:
    """The ini values that the run has read so far."""
    return {str(getattr(key, "name", key)): value for key, value in config._inicache.items()}


def ini_value(config: pytest.Config, name: str) -> Any:
    """An ini value, None where this pytest doesn't know it."""
    try:
        return config.getini(name)
    except (KeyError, ValueError):
        return None


def log_settings(config: pytest.Config) -> tuple[int | None, str, str]:
    """Level, format and date format of captured logs."""
    plugin = logging_plugin(config)
    if plugin is None:
        return None, "%(levelname)s %(name)s:%(filename)s:%(lineno)d %(message)s", "%H:%M:%S"
    formatter = plugin.formatter
    return plugin.log_level, formatter._fmt or "%(message)s", formatter.datefmt or "%H:%M:%S"
