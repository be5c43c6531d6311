"""Programs without torch, started and ended by the supervisor itself."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.events.ended import Ended
from harness.events.files import CHILD_LOG
from harness.supervise.folder import make_run_folder
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.process import supervise


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
