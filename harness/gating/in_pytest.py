"""Loaded into the gate's pytest processes: writes each result down as soon as it is known.

What a JUnit file of pytest's own loses with the process, the gate reads here. One JSON object a
line, with ``event``: ``collected``, ``collect_error``, ``start``, ``done`` or ``refused``.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

RERUNNERS = {
    "pytest_rerunfailures": "pytest-rerunfailures",
    "flaky": "flaky",
    "pytest_retry": "pytest-retry",
}
"""Plugins that run a failed test again, by package: a race that loses once is then not seen."""

_OPTION = "--compile-race-record"
_TEXT = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("compile-race", "races of torch.compile")
    group.addoption(_OPTION, metavar="FILE", help="write each test's result to this file at once")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin to record, or refuse."""
    path = config.getoption(_OPTION)
    if not path or hasattr(config, "workerinput"):  # what a worker of xdist's reports comes here
        return
    recorder = Recorder(Path(path))
    for plugin in config.pluginmanager.get_plugins():
        module = getattr(plugin, "__name__", None) or type(plugin).__module__
        name = RERUNNERS.get(str(module).partition(".")[0])
        if name is not None:
            recorder.write("refused", plugin=name)
            raise pytest.UsageError(f"{name} runs failed tests again, which hides races")
    config.pluginmanager.register(recorder, "compile-race-record")


class Recorder:
    """Writes a line for whatever pytest reports."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._file = path.open("a", encoding="utf-8")
        self._outcomes: dict[str, dict[str, Any]] = {}

    def write(self, event: str, **values: Any) -> None:  # noqa: ANN401 - whatever JSON holds
        """Write one line, and all of it: the process may be gone with the next one."""
        self._file.write(json.dumps({"event": event, **values}) + "\n")
        self._file.flush()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported has no tests to be missed."""
        if report.failed:
            self.write("collect_error", test=report.nodeid, text=report.longreprtext[-_TEXT:])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Name the tests that are to come."""
        self.write("collected", tests=[item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, and may end all."""
        self._outcomes[nodeid] = {"result": "passed", "text": "", "where": None, "seconds": 0.0}
        self.write("start", test=nodeid, at=time.time())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in a phase; a later one does not make a failure good."""
        outcome = self._outcomes[report.nodeid]
        outcome["seconds"] += report.duration
        if outcome["result"] != "passed" or report.passed:
            return
        if report.skipped:
            outcome["result"] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
            reason = report.longrepr
            outcome["text"] = str(reason[2] if isinstance(reason, tuple) else reason)
            return
        outcome["result"] = "failed" if report.when == "call" else "error"
        outcome["text"] = report.longreprtext[-_TEXT:]
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            outcome["where"] = [str(crash.path), int(crash.lineno)]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """The test is over."""
        self.write("done", test=nodeid, at=time.time(), **self._outcomes.pop(nodeid))
