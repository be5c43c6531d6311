"""Python children that the watch does not get into are told of; others are not."""

import json
import sys

import pytest

from harness.supervise import unwatched
from harness.supervise.process import supervise

PROGRAM = """
import json, os, pathlib, subprocess, sys, time
words, environment, folder = json.loads(sys.argv[1])
if environment is not None:
    environment = {**(os.environ if environment.pop("inherit", None) else {}), **environment}
child = subprocess.Popen(
    [sys.executable, *words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
assert child.stdout.readline() == b"up\\n"
folder = pathlib.Path(folder)
(folder / "ready").touch()
while not (folder / "seen").exists():
    time.sleep(0.01)
child.communicate()
"""
WAITS = "print('up', flush=True); import sys; sys.stdin.read()"
LOADED = (
    "import mmap, sys; file = open(sys.argv[1], 'rb'); "
    f"held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); {WAITS}"
)
BELOW = (
    "import subprocess, sys\n"
    "text = 'from multiprocessing.resource_tracker import main'\n"
    f"child = subprocess.Popen([sys.executable, '-c', {WAITS!r}], env={{}}, stdin=0, stdout=1)\n"
    "child.wait()"
)


@pytest.fixture
def seen(prepare, tmp_path, monkeypatch):
    """Runs a child while the supervisor looks at the process tree; gives what it says of it."""
    monkeypatch.setattr(unwatched, "EVERY_S", 0.0)

    def run(*words, environment=None):
        launch = prepare(PROGRAM, json.dumps([words, environment, str(tmp_path)]))
        looks = 0

        def tick():
            # Before each tick the tree is looked at, so the second one comes after a look.
            nonlocal looks
            looks += (tmp_path / "ready").exists()
            if looks == 2:
                (tmp_path / "seen").touch()

        ended = supervise(launch, tick)
        assert ended.exit_code == 0, ended.stderr_tail
        return ended.unwatched

    return run


@pytest.mark.parametrize(
    ("options", "environment", "option"),
    [
        (("-I",), None, "-I"),
        (("-uE",), None, "-E"),
        (("-X", "dev", "-S"), None, "-S"),
        ((), {}, ""),
        ((), {"inherit": "1", "PYTHONPATH": "/elsewhere"}, ""),
        ((), {"inherit": "1", "COMPILE_RACE_WATCH": ""}, ""),
    ],
    ids=["isolated", "in a cluster", "after a value", "no environment", "another path", "no mark"],
)
def test_a_child_that_is_shut_out(seen, options, environment, option) -> None:
    (child,) = seen(*options, "-c", WAITS, environment=environment)
    assert child.option == option
    assert child.command.startswith(sys.executable)
    assert not child.torch


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("-c", WAITS), None),
        (("-u", "-c", WAITS, "-I"), None),
        (("-c", WAITS), {"inherit": "1", "MORE": "1"}),
        (("-c", BELOW), None),
    ],
    ids=["as it is", "an option of the program's", "more environment", "below a helper"],
)
def test_a_child_that_is_watched_or_none_of_the_programs(seen, words, environment) -> None:
    assert seen(*words, environment=environment) == []


def test_a_child_that_another_watch_is_in(seen, prepare) -> None:
    inner = prepare("pass").settings(0.0).dumps()
    assert seen("-c", WAITS, environment={"inherit": "1", "COMPILE_RACE_WATCH": inner}) == []


def test_whether_it_has_torch(seen, tmp_path) -> None:
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"\0" * 4096)
    (child,) = seen("-I", "-c", LOADED, str(library))
    assert child.torch


def test_secrets_of_its_command_line_are_masked(seen) -> None:
    (child,) = seen("-I", "-c", WAITS, "--api-key=hunter2hunter2")
    assert "hunter2" not in child.command
