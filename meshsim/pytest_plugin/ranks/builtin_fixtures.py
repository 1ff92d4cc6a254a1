"""pytest's own fixtures on a rank: each call here makes one rank's own."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from meshsim.context import RankContext
from meshsim.errors import UsageError
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.harness import here
from meshsim.pytest_plugin.ranks.logs import RankHandler
from meshsim.pytest_plugin.ranks.patch import RankPatch


def rank_context() -> RankContext:
    return here().context


def mesh_context() -> Any:
    return here().context.mesh


# monkeypatch

_MISSING = object()


class RankMonkeyPatch(pytest.MonkeyPatch, RankPatch):  # type: ignore[misc]
    """A ``monkeypatch`` whose changes other ranks of the same process don't see."""

    def __init__(self) -> None:
        super().__init__()
        self._own: list[Callable[[], None]] = []

    def apply(self) -> None:
        for put_again in self._own:
            put_again()
        self._own = []

    def remove(self) -> None:
        again: list[Callable[[], None]] = []
        if self._savesyspath is not None:
            mine = list(sys.path)
            sys.path[:] = self._savesyspath
            again.append(lambda: sys.path.__setitem__(slice(None), mine))
        for target, name, before in reversed(self._setattr):
            again.append(_attribute_setter(target, name, _attribute(target, name)))
            _attribute_setter(target, name, before)()
        for mapping, key, before in reversed(self._setitem):
            # Each rank has an environment of its own, which the world swaps.
            if mapping is not os.environ:
                again.append(_item_setter(mapping, key, mapping.get(key, _MISSING)))
                _item_setter(mapping, key, before)()
        self._own = again[::-1]


def _attribute(target: Any, name: str) -> Any:
    return vars(target).get(name, _MISSING) if isinstance(target, type) else getattr(target, name, _MISSING)


def _is_missing(value: Any) -> bool:
    # pytest marks what was not there with an object of its own.
    return value is _MISSING or type(value).__name__ == "Notset"


def _attribute_setter(target: Any, name: str, value: Any) -> Callable[[], None]:
    def put() -> None:
        if not _is_missing(value):
            setattr(target, name, value)
        elif hasattr(target, name):
            delattr(target, name)

    return put


def _item_setter(mapping: Any, key: Any, value: Any) -> Callable[[], None]:
    def put() -> None:
        if not _is_missing(value):
            mapping[key] = value
        else:
            mapping.pop(key, None)

    return put


def monkeypatch() -> Iterator[RankMonkeyPatch]:
    patch = RankMonkeyPatch()
    patch.start()
    try:
        yield patch
    finally:
        if patch.is_on:
            patch.undo()
        patch.stop()


# capsys


class Captured(NamedTuple):
    """What ``readouterr`` answers."""

    out: Any
    err: Any


class RankCapture(RankPatch):
    """One rank's ``capsys``."""

    def __init__(self, binary: bool) -> None:
        self._binary = binary
        self._streams = (io.StringIO(), io.StringIO())
        self._outside: tuple[Any, Any] = (sys.stdout, sys.stderr)
        self._read = ["", ""]

    def apply(self) -> None:
        self._outside = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = self._streams

    def remove(self) -> None:
        sys.stdout, sys.stderr = self._outside

    def readouterr(self) -> Captured:
        """What the rank has printed since the last call."""
        texts = []
        for stream in self._streams:
            texts.append(stream.getvalue())
            stream.seek(0)
            stream.truncate()
        return Captured(*(text.encode() if self._binary else text for text in texts))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, what the rank prints goes where it would go without ``capsys``."""
        self.take_off()
        try:
            yield
        finally:
            self.put_on()

    def pass_on(self) -> None:
        """What was never read belongs to the test's report."""
        for stream, outside in zip(self._streams, self._outside, strict=True):
            outside.write(stream.getvalue())


def capsys(binary: bool) -> Iterator[RankCapture]:
    capture = RankCapture(binary)
    capture.start()
    try:
        yield capture
    finally:
        was_on = capture.is_on
        capture.stop()
        if was_on:
            capture.pass_on()


# caplog


class _Levels(RankPatch):
    """The levels of loggers that one rank's ``caplog`` has set."""

    def __init__(self, fixture: pytest.LogCaptureFixture) -> None:
        self._fixture = fixture
        self._mine: dict[str | None, int] = {}

    def apply(self) -> None:
        for name, level in self._mine.items():
            logging.getLogger(name).setLevel(level)

    def remove(self) -> None:
        before = pytest_private.log_levels_of(self._fixture)
        self._mine = {name: logging.getLogger(name).level for name in before}
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def caplog() -> Iterator[pytest.LogCaptureFixture]:
    settings = here().settings
    handler = pytest_private.LogCaptureHandler()
    handler.setFormatter(pytest_private.log_formatter(settings.log_format, settings.log_date_format))
    fixture = pytest_private.log_capture_fixture(handler)
    patches = (RankHandler(handler), _Levels(fixture))
    for patch in patches:
        patch.start()
    try:
        yield fixture
    finally:
        if patches[1].is_on:
            pytest_private.end_log_capture(fixture)
        for patch in patches:
            patch.stop()


# recwarn


def recwarn() -> Iterator[pytest.WarningsRecorder]:
    import warnings

    with pytest.WarningsRecorder(_ispytest=True) as recorder:
        warnings.simplefilter("default")
        yield recorder


# request


class RankConfig:
    """The options and ini values that can be copied to a rank."""

    def __init__(self, options: Mapping[str, Any], ini: Mapping[str, Any], rootpath: Any) -> None:
        self._options = options
        self._ini = ini
        self.rootpath = rootpath

    def getoption(self, name: str, default: Any = _MISSING, skip: bool = False) -> Any:
        """The value of a command-line option, by its name or its destination."""
        key = name.lstrip("-").replace("-", "_")
        value = self._options.get(key, default)
        if value is not _MISSING:
            return value
        if skip:
            pytest.skip(f"no {name!r} option found")
        raise ValueError(f"no option named {name!r}, or its value can't be copied to a rank")

    def getini(self, name: str) -> Any:
        """The value of an ini option that the run has read."""
        if name in self._ini:
            return self._ini[name]
        raise ValueError(f"the ini value {name!r} is not known on the ranks; read it in a fixture")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"pytest's config has no {name!r} on a rank, only getoption, getini and rootpath; read the rest "
            "in a fixture, which pytest evaluates in its own process"
        )


class RankNode(NamedTuple):
    """What a test can know of itself on a rank."""

    name: str
    nodeid: str
    originalname: str
    keywords: frozenset[str]


class RankRequest:
    """A rank's ``request``. What only pytest's own process has is refused with a way out."""

    def __init__(self, node: RankNode, config: RankConfig, facts: Mapping[str, Any]) -> None:
        self.node = node
        self.config = config
        self._facts = facts
        self._finalizers: list[Callable[[], Any]] = []

    @property
    def fixturenames(self) -> list[str]:
        """The names of the fixtures whose values are here."""
        values = here().values
        return values.names() if values is not None else []

    def getfixturevalue(self, name: str) -> Any:
        """The value of a fixture that the test, or one of its rank fixtures, names as an argument."""
        values = here().values
        if values is not None and name in values:
            return values[name]
        raise UsageError(
            f"request.getfixturevalue({name!r}): fixtures are evaluated before the ranks start; name it as "
            "an argument of the test"
        )

    def addfinalizer(self, finalizer: Callable[[], Any]) -> None:
        """Call this on the rank when the body has ended."""
        self._finalizers.append(finalizer)

    def run_finalizers(self) -> None:
        while self._finalizers:
            self._finalizers.pop()()

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("_facts", {})
        if name in facts:
            return facts[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"request has no {name!r} on a rank; it has {', '.join(sorted(facts))}, node, config, "
            "fixturenames, getfixturevalue and addfinalizer. For the rest use request in a fixture, which "
            "pytest evaluates in its own process"
        )


def request(node: RankNode, config: RankConfig, facts: Mapping[str, Any]) -> Iterator[RankRequest]:
    made = RankRequest(node, config, facts)
    try:
        yield made
    finally:
        made.run_finalizers()


# record_property and its like


class Recorder:
    """Keeps the calls; pytest's own process makes each different one once."""

    def __init__(self, fixture: str) -> None:
        self._fixture = fixture

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        here().recorded.append((self._fixture, arguments, keywords))
