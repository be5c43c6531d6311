"""Options and fixtures of the scenarios: every run is a process of its own under the harness."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Result:
    """What one watched run gave."""

    report: dict[str, Any]
    exit_code: int

    @property
    def verdict(self) -> str:
        """``clean``, ``found``, ``incomplete`` or ``failed``."""
        return str(self.report["verdict"])

    @property
    def roots(self) -> set[str]:
        """Codes of the findings that start a chain."""
        return {f["code"] for f in self.report["findings"] if f["root"]}

    @property
    def codes(self) -> set[str]:
        """Codes of all findings."""
        return {f["code"] for f in self.report["findings"]}

    def count(self, name: str) -> int:
        """One of the report's counts."""
        return int(self.report["counts"][name])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that a GPU runner needs."""
    parser.addoption(
        "--compile-race-require-gpu",
        type=int,
        default=0,
        metavar="N",
        help="fail unless N GPUs are visible; scenarios that need at most N GPUs must then run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and refuse to start without the GPUs that were asked for."""
    config.addinivalue_line("markers", "gpus(n): the scenario needs n GPUs")
    required = config.getoption("--compile-race-require-gpu")
    if required and (visible := visible_gpus()) < required:
        raise pytest.UsageError(
            f"--compile-race-require-gpu {required}: only {visible} GPUs are visible"
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a scenario that needs more GPUs than there are, or than were required."""
    marker = item.get_closest_marker("gpus")
    if marker is None:
        return
    needed = marker.args[0]
    available = item.config.getoption("--compile-race-require-gpu") or visible_gpus()
    if needed > available:
        pytest.skip(f"needs {needed} GPUs, {available} are available")


def visible_gpus() -> int:
    """GPUs that torch sees, counted without initialising CUDA."""
    import torch

    return torch.cuda.device_count()


def _run(command: list[str], out: Path, *rest: str) -> Result:
    run = subprocess.run(
        [sys.executable, "-m", *command, "--out", str(out), *rest],
        capture_output=True,
        text=True,
        check=False,
    )
    saved = list(out.glob("*/report.json"))
    assert len(saved) == 1, f"{run.args} left {len(saved)} reports\n{run.stderr[-4000:]}"
    return Result(json.loads(saved[0].read_text()), run.returncode)


def _watch(out: Path, program: str, arguments: Sequence[str], flags: Sequence[str]) -> Result:
    return _run(["harness.watch", *flags], out, "--", str(PROGRAMS / program), *arguments)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Result]:
    """Run the trainer under the watch: ``train("--warmup", "no_grad")``.

    On a CPU it ends after four steps, in which each drafter has had several lengths.
    """
    short = () if visible_gpus() else ("--steps", "4")

    def run(*flags: str) -> Result:
        return _run(["harness.run", *short, *flags], tmp_path)

    return run


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Result]:
    """Run one of ``repro/programs`` under the watch: ``watch("dense_fallback.py", "compiled")``.

    ``flags`` are the watch's own.
    """

    def run(program: str, *arguments: str, flags: Sequence[str] = ()) -> Result:
        return _watch(tmp_path, program, arguments, flags)

    return run


@pytest.fixture(scope="module")
def watch_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Result]:
    """``watch`` for a run that several tests of a module judge."""

    def run(program: str, *arguments: str, flags: Sequence[str] = ()) -> Result:
        return _watch(tmp_path_factory.mktemp("run"), program, arguments, flags)

    return run


@pytest.fixture
def short_length() -> str:
    """A warm-up length that no training batch has, on the device that the trainer takes."""
    return "512" if visible_gpus() else "128"


@pytest.fixture
def training_length() -> str:
    """A length that training batches have."""
    return "1024" if visible_gpus() else "192"
