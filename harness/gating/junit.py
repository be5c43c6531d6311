"""JUnit XML of a gate, written by the parent: a child that died has its place in it."""

import xml.etree.ElementTree as ET

from harness.gating.compare import FAILURES, SKIPPED, Judged
from harness.gating.outcome import Gate, name_of
from harness.render.text import block


def junit(gate: Gate) -> str:
    """One ``testsuite`` a scenario.

    ``failure``: regressed, improved and expired; ``error``: incomplete and not run, which are no
    skips; ``skipped``: only what the baseline has as skipped.
    """
    suites: dict[str, list[Judged]] = {}
    for one in gate.judged:
        suites.setdefault(one.measured.key.scenario, []).append(one)
    root = ET.Element("testsuites", {"name": "compile races", **_totals(gate.judged)})
    for name, cases in suites.items():
        suite = ET.SubElement(root, "testsuite", {"name": block(name), **_totals(cases)})
        for case in cases:
            _case(suite, case)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _totals(cases: tuple[Judged, ...] | list[Judged]) -> dict[str, str]:
    kinds = [_kind(case) for case in cases]
    return {
        "tests": str(len(cases)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
        "time": f"{sum(case.measured.seconds for case in cases):.2f}",
    }


def _kind(case: Judged) -> str:
    if case.status in FAILURES:
        return "failure"
    if case.status != "same":
        return "error"
    return "skipped" if case.measured.result == SKIPPED else ""


def _case(suite: ET.Element, case: Judged) -> None:
    measured = case.measured
    element = ET.SubElement(
        suite,
        "testcase",
        name=block(name_of(case)),
        classname=block(measured.key.scenario),
        time=f"{measured.seconds:.2f}",
    )
    kind = _kind(case)
    if kind:
        message = f"{case.status}: {case.because}" if kind != "skipped" else measured.said
        result = ET.SubElement(element, kind, message=block(message))
        if kind != "skipped":
            result.set("type", case.status)
            parts = (measured.said, measured.detail, f"reproduce: {measured.reproduce}")
            result.text = block("\n\n".join(part for part in parts if part))
    ET.SubElement(element, "system-out").text = block(f"files: {measured.folder}")
