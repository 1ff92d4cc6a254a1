"""Runs as JUnit XML, which CI systems read: one test case a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from meshsim.reports.failure_text import failure_text
from meshsim.result import RunResult

# XML 1.0 has no way to write these, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(results: Sequence[RunResult], suite: str = "meshsim") -> str:
    """A whole XML document as text."""
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(
        root,
        "testsuite",
        name=suite,
        tests=str(len(results)),
        failures=str(sum(result.failed for result in results)),
        errors="0",
        skipped=str(sum(result.not_run for result in results)),
        time=f"{sum(result.duration for result in results):.3f}",
    )
    for result in results:
        _add_case(element, result)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ElementTree.Element, result: RunResult) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"{xml_text(result.scenario) or 'scenario'}.{result.backend}",
        name=f"{xml_text(result.scenario) or 'scenario'}[{result.topology}]",
        time=f"{result.duration:.3f}",
    )
    if result.not_run:
        ElementTree.SubElement(case, "skipped", message=xml_text(result.verdict.summary))
    elif not result.ok:
        failure = ElementTree.SubElement(
            case, "failure", type=result.verdict.kind.value, message=xml_text(result.verdict.summary)
        )
        failure.text = xml_text(failure_text(result))


def xml_text(text: str) -> str:
    return _NOT_XML.sub("�", text)
