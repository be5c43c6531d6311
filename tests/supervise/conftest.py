"""Programs without torch, started and ended by the supervisor itself."""

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.events.ended import Ended
from harness.events.files import CHILD_LOG
from harness.supervise import process as process_module
from harness.supervise.folder import make_run_folder
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.process import supervise


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    """Where a test does not say how long a program may take, a busy machine does not either."""
    for name in ("_TERM_GRACE_S", "_TOLD_LOOK_S", "_TERMINATE_GRACE_S"):
        monkeypatch.setattr(process_module, name, 60.0)


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., Launch]:
    """Make a launch of a program (its text)."""

    def launch(text: str, *arguments: str, timeout_s: float = 30.0, **watch) -> Launch:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(text), encoding="utf-8")
        folder = make_run_folder(tmp_path / "out", "test")
        return Launch(
            command=(sys.executable, str(script), *arguments),
            folder=folder,
            watch=WatchSettings(**watch),
            timeout_s=timeout_s,
            log=folder / CHILD_LOG,
        )

    return launch


@pytest.fixture
def supervised(prepare) -> Callable[..., tuple[Ended, Path]]:
    """Run a program (its text) to its end."""

    def run(text: str, *arguments: str, **options) -> tuple[Ended, Path]:
        launch = prepare(text, *arguments, **options)
        return supervise(launch), launch.folder

    return run


class Clock:
    """The supervisor's clock. It stands still until it is let go."""

    def __init__(self) -> None:
        self._stands: float | None = time.monotonic()
        self._behind = 0.0

    def monotonic(self) -> float:
        return time.monotonic() - self._behind if self._stands is None else self._stands

    def let_go(self) -> None:
        if self._stands is not None:
            self._behind, self._stands = time.monotonic() - self._stands, None


@pytest.fixture
def supervised_from_up(prepare, monkeypatch) -> Callable[..., Ended]:
    """Run a program (its text) whose seconds count from when it has printed ``up``.

    How long an interpreter takes to start is none of the program's time, and on a busy machine it
    is any. With ``at_rest`` they count from when each of its threads waits, too.
    """

    def run(text: str, *, at_rest: bool = False, **options) -> Ended:
        launch = prepare(
            f"import os\nprint(os.getpid(), flush=True)\n{textwrap.dedent(text)}", **options
        )
        clock = Clock()
        monkeypatch.setattr(process_module, "time", clock)
        before: dict[str, list[str]] | None = None

        def tick() -> None:
            nonlocal before
            said = launch.log.read_text()
            if "\nup\n" not in said:
                return
            pid = said.partition("\n")[0]
            now = _asleep(pid) if at_rest else {}
            if now is not None and now in ({}, before):
                clock.let_go()
            before = now

        return supervise(launch, tick)

    return run


def _asleep(pid: str) -> dict[str, list[str]] | None:
    """How often each thread of a process has given up its processor; None unless all sleep."""
    switches = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        if not any(line.startswith("State:\tS") for line in lines):
            return None
        switches[task.name] = [line for line in lines if "ctxt_switches" in line]
    return switches
