"""Programs on real torch in watched child processes; each is run once and read by several tests."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.child.recorder import Recorder
from harness.child.settings import VARIABLE, Settings
from harness.events import schema
from harness.supervise.launch import SITE

#: The interpreter whose torch is watched; the tests' own has to have torch as well.
PYTHON = os.environ.get("COMPILE_RACE_TEST_PYTHON", sys.executable)

# CUDA builds of torch up to 2.13 crash on a machine without a GPU when the first compile of the
# process is a thread's; entering the mode once in the main thread avoids it.
PREAMBLE = """
import threading, time, sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.empty(1)

def wait_for(event):
    '''Wait, and end a hang: what comes next would not show what it is to show.'''
    if not event.wait(120):
        raise TimeoutError("nobody came")

def run(function, *args, name):
    thread = threading.Thread(target=function, args=args, name=name)
    thread.start()
    thread.join()
"""


@dataclass
class Watched:
    """A finished program and its events, decoded by the schema."""

    code: int
    out: str
    err: str
    events: list[Any]

    def of(self, kind: type, thread: str | None = None, edge: str | None = None) -> list[Any]:
        return [
            event
            for event in self.events
            if isinstance(event, kind)
            and thread in (None, event.thread)
            and edge in (None, event.edge)
        ]

    @property
    def config_is_per_thread(self) -> bool:
        """Dynamo's config is a context variable from torch 2.12 on."""
        major, minor = self.of(schema.Header)[0].data.torch.split(".")[:2]
        return (int(major), int(minor)) >= (2, 12)

    def states(self) -> dict[str, str]:
        return {event.data.name: event.data.state for event in self.of(schema.Probe)}

    def reasons(self) -> dict[str, str]:
        return {event.data.name: event.data.reason for event in self.of(schema.Probe)}


Watch = Callable[..., Watched]


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """Run a program (its text, or a path) under the watch to its end."""

    def run_program(program: str | Path, *arguments: str, **settings: Any) -> Watched:
        folder = tmp_path_factory.mktemp("watched")
        if isinstance(program, str):
            script = folder / "program.py"
            script.write_text(PREAMBLE + textwrap.dedent(program), encoding="utf-8")
        else:
            script = program
        text = Settings(folder=str(folder), harness="test", **settings).dumps()
        done = subprocess.run(
            [PYTHON, str(script), *arguments],
            env={
                **os.environ,
                VARIABLE: text,
                "PYTHONPATH": str(SITE),
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        lines = (folder / "events.jsonl").read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=schema.Event) for line in lines]
        return Watched(done.returncode, done.stdout, done.stderr, events)

    return run_program


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run a program without the watch and return what it printed."""

    def run_program(program: str) -> str:
        script = tmp_path_factory.mktemp("bare") / "program.py"
        script.write_text(PREAMBLE + textwrap.dedent(program), encoding="utf-8")
        command = [PYTHON, str(script)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run_program


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder for code that is run in the test's own process."""
    return Recorder(str(tmp_path))


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[], list[Any]]:
    """The events that ``recorder`` wrote so far."""

    def read() -> list[Any]:
        lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=schema.Event) for line in lines]

    return read
