"""A smoke run as one screen of text, and as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from meshsim.reports.junit import xml_text
from meshsim.reports.tables import aligned
from meshsim.smoke.outcome import Check, SmokeReport, StageState

_LINES = 24
"""Of details, so that the whole fits a screen."""


def smoke_text(report: SmokeReport) -> str:
    """The verdict, a line for each stage, and details as far as they fit."""
    word = "PASSED" if report.ok else "FAILED"
    budget = f" of {report.budget:g} s" if report.budget is not None else ""
    hosts = f"{len(report.hosts)} host{'' if len(report.hosts) == 1 else 's'}"
    head = (
        f"smoke run {word}: {report.verdict}\n"
        f"{report.topology}, {report.world_size} ranks on {report.backend}, {hosts}, "
        f"{report.seconds:.0f} s{budget}"
    )
    rows = [(stage.name, stage.state.value, stage.summary) for stage in report.stages]
    lines = [line for stage in report.stages for line in stage.lines]
    shown = (
        lines
        if len(lines) <= _LINES
        else [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more (--json)"]
    )
    return "\n\n".join(
        part for part in (head, aligned(("stage", "state", "found"), rows), "\n".join(shown)) if part
    )


def smoke_junit(report: SmokeReport) -> str:
    """A test suite for each stage, a test case for each check."""
    root = ElementTree.Element("testsuites")
    for stage in report.stages:
        checks = stage.checks or [Check(stage.name, stage.state, stage.summary, stage.seconds)]
        bad = [check for check in checks if _is_bad(report, check)]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=f"meshsim smoke {stage.name}",
            tests=str(len(checks)),
            failures=str(len(bad)),
            errors="0",
            skipped=str(sum(check.state is StageState.NOT_RUN for check in checks)),
            time=f"{stage.seconds:.3f}",
        )
        for check in checks:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"smoke.{stage.name}",
                name=xml_text(check.name),
                time=f"{check.seconds:.3f}",
            )
            if check.state is StageState.NOT_RUN:
                ElementTree.SubElement(case, "skipped", message=xml_text(check.text))
            elif check in bad:
                failure = ElementTree.SubElement(
                    case, "failure", type=check.state.value, message=xml_text(check.text)
                )
                failure.text = xml_text("\n".join([check.text, *stage.lines]))
            elif check.text:
                ElementTree.SubElement(case, "system-out").text = xml_text(check.text)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _is_bad(report: SmokeReport, check: Check) -> bool:
    return check.state is StageState.FAILED or (report.slow_fails and check.state is StageState.SLOW)
