"""Options and fixtures of the scenarios: every run is a process of its own under the harness."""

import functools
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import run as trainer
from harness import watch as watcher
from harness.command import Command
from harness.gating.pytest_gpus import (  # noqa: F401 - pytest finds hooks and fixtures here
    gpu_fixture,
    pytest_addoption,
    pytest_configure,
    pytest_configure_node,
    pytest_runtest_protocol,
    pytest_runtest_setup,
)

PROGRAMS = Path(__file__).parent / "programs"
TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
AFTER_COMPILES = frozenset({"CR301", "CR303", "CR310", "CR901"}) | (
    {"CR305"} if TORCH <= (2, 11) else set()
)
"""What threads that compile at the same time may find besides, and which is another run's luck.

Up to torch 2.11 the end of one's call undoes the other's ``dynamic=`` as well (CR305).
"""


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

    @property
    def own_codes(self) -> set[str]:
        """Codes of all findings but those that compiles of several threads may bring about."""
        return self.codes - AFTER_COMPILES

    def count(self, name: str) -> int:
        """One of the report's counts."""
        return int(self.report["counts"][name])


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Leave no slow scenario out of a run of scenarios alone, unless ``-m`` asks for that."""
    here = Path(__file__).parent
    given = [Path(word.partition("::")[0]).resolve() for word in config.args]
    asked = any(word.startswith("-m") for word in config.invocation_params.args)
    if not asked and all(path.is_relative_to(here) for path in given):
        config.option.markexpr = ""


def _run(main: Command, out: Path, *words: str) -> Result:
    """Run a command here: what it watches is a process of its own in any case."""
    code = main(["--out", str(out), *words])
    saved = list(out.glob("*/report.json"))
    assert len(saved) == 1, f"{words} left {len(saved)} reports"
    return Result(json.loads(saved[0].read_text()), code)


def _watch(out: Path, program: str, arguments: Sequence[str], flags: Sequence[str]) -> Result:
    return _run(watcher.main, out, *flags, "--", str(PROGRAMS / program), *arguments)


@pytest.fixture
def train(tmp_path: Path, gpu: int) -> Callable[..., Result]:
    """Run the trainer under the watch: ``train("--warmup", "no_grad")``.

    On a CPU it ends after four steps, in which each drafter has had several lengths.
    """
    short = () if gpu else ("--steps", "4")

    def run(*flags: str) -> Result:
        return _run(trainer.main, tmp_path, *short, *flags)

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


@pytest.fixture(scope="module")
def in_turn(watch_once: Callable[..., Result]) -> Callable[..., Result]:
    """Run a program in several modes, one after the other in one process, once a module.

    For controls and fixes, all of which have to be clean:
    ``in_turn("lock_order.py", "serial", "outside")``. A mode may be several words.
    """

    @functools.cache
    def run(program: str, *modes: str) -> Result:
        return watch_once("in_turn.py", str(PROGRAMS / program), *modes)

    return run


@pytest.fixture
def short_length(gpu: int) -> str:
    """A warm-up length that no training batch has, on the device that the trainer takes."""
    return "512" if gpu else "128"


@pytest.fixture
def training_length(gpu: int) -> str:
    """A length that training batches have."""
    return "1024" if gpu else "192"
