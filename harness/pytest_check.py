"""What the pytest plugin does with a test: run its body in threads, and judge its watch."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from harness.child.in_process import compiler_state
from harness.diagnosis.report import Report
from harness.exits import ExitCode
from harness.expect import decide_exit
from harness.inprocess import Watching
from harness.phrases import count

SECTION = "compile race"
_ENDINGS = "CR9"
"""Codes that say how a program ended, which of a test pytest itself says."""


def run_in_threads(
    item: pytest.Function, arguments: Mapping[str, Any], number: int, *, tolerant: bool
) -> None:
    """Call a test's function in so many threads at once, with the same fixtures.

    Args:
        item: the test.
        arguments: its fixtures' values.
        number: threads.
        tolerant: errors only go into the test's report.

    Raises:
        RuntimeError: so many threads cannot be started.
        BaseExceptionGroup: of every thread's error, each with the thread's name; where all are the
            same outcome of pytest's, such as a skip, that.
    """
    barrier = threading.Barrier(number)
    errors: dict[str, BaseException] = {}

    def body() -> None:
        name = threading.current_thread().name
        try:
            barrier.wait()
            item.obj(**arguments)
        except BaseException as error:  # noqa: BLE001 - shown below, each of them
            error.add_note(f"in thread {name}")
            errors[name] = error

    threads = [threading.Thread(target=body, name=f"compile-race-{n}") for n in range(number)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # no more threads can be had: those that wait would wait for ever
        barrier.abort()
        raise
    for thread in threads:
        thread.join()
    found = [errors[name] for name in sorted(errors, key=lambda name: int(name.split("-")[-1]))]
    if not found:
        return
    if tolerant:
        texts = [f"{name}: {type(error).__name__}: {error}" for name, error in errors.items()]
        item.add_report_section("call", SECTION, "\n".join(texts))
        return
    if len(found) == number and all(isinstance(e, pytest.skip.Exception) for e in found):
        raise found[0]
    raise BaseExceptionGroup(f"{len(found)} of {number} threads failed", found)


def show(item: pytest.Item, watching: Watching, before: compiler_state.State) -> None:
    """Say in the report of a test that failed by itself what else is wrong with it.

    The test's own error is what counts: nothing is raised where its watch has no report.
    """
    left = _left_behind(before)
    if left:
        item.add_report_section("call", SECTION, "\n".join(left))
    if watching.ended and _tells(watching.diagnosis):
        item.add_report_section("call", SECTION, watching.report())


def judge(
    item: pytest.Item,
    watching: Watching,
    expect: tuple[str, ...] | None,
    before: compiler_state.State,
) -> str:
    """Say why a test whose body passed fails all the same; empty if it does not.

    The report goes into the test's own, where pytest shows it if the test fails.

    Args:
        item: the test.
        watching: its watch, which has ended.
        expect: what its marker names; None: it has no marker.
        before: ``compiler_state.state()`` before it.
    """
    report = watching.diagnosis
    reasons = [*_unexpected(report, expect), *_after_warmup(report, expect)]
    reasons += _left_behind(before)
    if reasons or _tells(report):
        item.add_report_section("call", SECTION, watching.report())
    return f"compile race: {'; '.join(reasons)}" if reasons else ""


def _left_behind(before: compiler_state.State) -> list[str]:
    left = compiler_state.changes(before, compiler_state.state())
    return [f"it leaves compiler state behind: {said}" for said in left]


def _tells(report: Report) -> bool:
    return any(not _ending(finding.code) for finding in report.findings)


def _unexpected(report: Report, expect: tuple[str, ...] | None) -> list[str]:
    if expect is None:
        roots = [f for f in report.findings if f.root and not _ending(f.code)]
        return [f"{root.code} {root.title}: {report.headline}" for root in roots[:1]]
    if decide_exit(report, expect, ()) is ExitCode.CLEAN:
        return []
    return [f"expected {', '.join(expect)}, {report.verdict}: {report.headline}"]


def _after_warmup(report: Report, expect: tuple[str, ...] | None) -> list[str]:
    after = report.after_warmup
    if after is None or expect not in {None, ("clean",)}:
        return []
    said = []
    if after.compiles:
        said.append(f"{count(after.compiles, 'compile')} after its warm-up")
    if after.fallbacks:
        said.append(f"{count(after.fallbacks, 'dense fallback')} or more after its warm-up")
    if after.eager:
        said.append(f"{count(after.eager, 'call')} or more that ran eager after its warm-up")
    return said


def _ending(code: str) -> bool:
    return code.startswith(_ENDINGS)
