"""A JUnit file that is complete after every test, so that a killed job leaves what it had.

pytest writes its file at the end of the session. Until then a file of the same name grows by one test at a
time; it is a whole XML document at every moment, and pytest overwrites it in the end.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshsim.pytest_plugin import pytest_private

_HEAD = b'<?xml version="1.0" encoding="utf-8"?>\n<testsuites><testsuite name="pytest">\n'
_TAIL = b"</testsuite></testsuites>\n"


class JunitSoFar:
    """Appends each finished test to the JUnit file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._written: set[int] = set()
        self._path: Path | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        xml = pytest_private.junit_of(self._config)
        if xml is None:
            return
        finished = [one for one in xml.finished() if id(one) not in self._written]
        self._written.update(map(id, finished))
        self._append(xml.path, b"".join(ElementTree.tostring(one.to_xml()) + b"\n" for one in finished))

    def _append(self, path: str, cases: bytes) -> None:
        if self._path is None:
            self._path = Path(path)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(_HEAD + _TAIL)
        with self._path.open("r+b") as file:
            file.seek(-len(_TAIL), os.SEEK_END)
            # In one write: the file is whole before it and after it.
            file.write(cases + _TAIL)
