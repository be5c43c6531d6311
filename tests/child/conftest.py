"""Watched child processes, started as the parent starts them but without a parent."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from harness.child.session import FAULTS
from harness.child.settings import VARIABLE, Settings
from harness.events.schema import Event
from harness.supervise.launch import SITE

# Only what works without torch: with it, every child would take seconds to start.
WITHOUT_TORCH = ("threads", "futures", "workload")


@dataclass
class Child:
    """A finished child and its recordings, by file name."""

    code: int
    out: str
    err: str
    folder: Path

    def events(self, name: str = "events.jsonl") -> list[Event]:
        """Decode every line; an unreadable one fails the test."""
        raw = (self.folder / name).read_bytes()
        assert raw.endswith(b"\n")
        return [msgspec.json.decode(line, type=Event) for line in raw.splitlines()]

    def of(self, kind: type, name: str = "events.jsonl") -> list:
        return [event for event in self.events(name) if isinstance(event, kind)]

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {FAULTS}


Run = Callable[..., Child]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(run_folder: Path) -> dict[str, str]:
    settings = Settings(folder=str(run_folder), harness="test")
    return {**os.environ, VARIABLE: settings.dumps(), "PYTHONPATH": str(SITE)}


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a program (its text) in a watched interpreter."""
    started: list[subprocess.Popen] = []

    def start_program(text: str, *arguments: str, python: str = sys.executable, **env: str):
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(text), encoding="utf-8")
        process = subprocess.Popen(
            [python, str(script), *arguments],
            env={**environment, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_program
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start: Callable[..., subprocess.Popen], run_folder: Path) -> Run:
    """Run a program (its text) in a watched interpreter to its end."""

    def run_program(text: str, *arguments: str, python: str = sys.executable, **env: str) -> Child:
        process = start(text, *arguments, python=python, **env)
        out, err = process.communicate(timeout=60)
        return Child(process.returncode, out, err, run_folder)

    return run_program
