"""A parent that is killed leaves no orphan: its guardian ends the program and says so."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.events.ended import read_ended
from harness.events.files import CHILD_LOG, ENDED
from harness.supervise import aftermath, guard
from harness.supervise import guardian as guardian_module
from harness.supervise.folder import make_run_folder
from harness.supervise.process import supervise

PARENT = """
import sys
from pathlib import Path
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.process import supervise
folder = Path(sys.argv[1])
log = folder / "child.log" if sys.argv[2] == "log" else None
supervise(Launch(tuple(sys.argv[3:]), folder, WatchSettings(), 120.0, log))
"""
ROOT = Path(__file__).parents[2]


class Parent:
    """A parent of its own process, whose program has said ``up``."""

    def __init__(self, tmp_path: Path, program: str, output: str = "log"):
        self.folder = make_run_folder(tmp_path / "out", "test")
        script, self.said = tmp_path / "program.py", tmp_path / "said"
        script.write_text(f"told = {str(self.said)!r}\n{program}")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(self.folder), output, sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        wait_for(lambda: self.said.exists() and self.said.read_text().endswith("\n"))
        self.pids = [int(word) for word in self.said.read_text().split()]
        self.processes = [psutil.Process(pid) for pid in self.pids]
        # It has come to its sleep, which is what will be told of it.
        wait_for(lambda: self.processes[0].status() == psutil.STATUS_SLEEPING)

    def guardian(self) -> psutil.Process:
        """The parent's, once it waits for what the parent says."""
        (found,) = (
            child
            for child in psutil.Process(self.process.pid).children()
            if "guardian.py" in " ".join(child.cmdline())
        )
        wait_for(lambda: ignores(found.pid, signal.SIGPIPE))  # the last that it learns to ignore
        wait_for(lambda: found.status() == psutil.STATUS_SLEEPING)
        return found

    def kill(self) -> psutil.Process:
        guardian = self.guardian()
        self.process.kill()
        return guardian


@pytest.fixture
def start(tmp_path):
    """Start parents of programs; what is left of them at the end is ended."""
    parents: list[Parent] = []

    def make(program: str, output: str = "log") -> Parent:
        parents.append(Parent(tmp_path, program, output))
        return parents[-1]

    yield make
    for parent in parents:
        for process in parent.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        parent.process.kill()
        parent.process.communicate(timeout=60)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


UP = "import os, time; open(told, 'w').write(f'{os.getpid()}\\n'); time.sleep(600)"
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {UP}"
TREE = """
import os, subprocess, sys, time
code = "import time; time.sleep(600)"
own = subprocess.Popen([sys.executable, "-c", code])
away = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
os.makedirs(os.environ["TORCHINDUCTOR_CACHE_DIR"])
open(told, "w").write(f"{os.getpid()} {own.pid} {away.pid}\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("program", [UP, TREE])
def test_the_whole_tree_is_ended_and_the_end_written_down(start, program):
    began = time.monotonic()
    parent = start(program)
    guardian = parent.kill()
    wait_for(lambda: not runs(guardian.pid))
    assert not any(runs(pid) for pid in parent.pids)
    ended = read_ended(parent.folder)
    assert ended is not None
    assert (ended.parent_killed, ended.killed_from_outside) == (True, True)
    assert (ended.exit_code, ended.signal, ended.interrupted) == (None, None, False)
    assert ended.sent == ["SIGTERM"]
    assert ended.command[0] == sys.executable
    assert 0 < ended.wall_s <= round(time.monotonic() - began, 3)
    assert ended.leftovers == (1 if program is TREE else 0)
    assert "program.py" in ended.stacks
    assert [wait.what for wait in ended.waits] == ["a sleep to end"]
    assert not (parent.folder / "cache").exists()


def test_a_program_that_ignores_sigterm_is_killed(start):
    parent = start(DEAF)
    guardian = parent.kill()
    wait_for(lambda: not runs(guardian.pid))
    ended = read_ended(parent.folder)
    assert ended is not None
    assert ended.sent == ["SIGTERM", "SIGKILL"]
    assert not runs(parent.pids[0])


def test_what_the_program_had_printed_is_kept(start):
    parent = start(f"print('half done', flush=True); {UP}")
    guardian = parent.kill()
    wait_for(lambda: not runs(guardian.pid))
    ended = read_ended(parent.folder)
    assert ended is not None
    assert ended.stderr_tail == "half done\n"


def test_it_outlives_the_signals_of_the_terminals_group(start):
    parent = start(UP)
    guardian = parent.guardian()
    assert os.getsid(guardian.pid) == guardian.pid  # no terminal reaches it
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        guardian.send_signal(number)
    parent.process.kill()
    wait_for(lambda: not runs(guardian.pid))
    assert not runs(parent.pids[0])
    assert (parent.folder / ENDED).exists()


def test_it_holds_none_of_the_runs_files_open(start, tmp_path):
    """Whoever reads the parent's output sees its end, and the run's folder can be removed."""
    parent = start(DEAF, output="inherited")
    guardian = parent.guardian()
    files = {file.path for file in guardian.open_files()}
    assert not any(str(tmp_path) in file for file in files)
    assert guardian.cwd() == "/"
    links = {str(Path(f"/proc/{guardian.pid}/fd/{n}").readlink()) for n in (1, 2)}
    assert links == {"/dev/null"}
    ours = {str(Path(f"/proc/{parent.process.pid}/fd/{n}").readlink()) for n in (1, 2)}
    held = {str(path.readlink()) for path in Path(f"/proc/{guardian.pid}/fd").iterdir()}
    assert not ours & held
    parent.kill()
    wait_for(lambda: not runs(guardian.pid))


def test_starting_costs_little_and_it_leaves_with_the_parents_goodbye(start):
    parent = start(UP)
    guardian = parent.guardian()
    times = guardian.cpu_times()
    assert times.user + times.system < 0.1
    assert guardian.memory_info().rss < 32 << 20
    os.kill(parent.pids[0], signal.SIGKILL)
    parent.process.communicate(timeout=60)
    assert not runs(guardian.pid)
    ended = read_ended(parent.folder)
    assert ended is not None
    assert (ended.parent_killed, ended.signal) == (False, signal.SIGKILL)


def test_what_the_parent_wrote_down_is_left_alone(start):
    parent = start(UP)
    (parent.folder / ENDED).write_text("{}")
    guardian = parent.kill()
    wait_for(lambda: not runs(guardian.pid))
    assert (parent.folder / ENDED).read_text() == "{}"
    assert not runs(parent.pids[0])


def messages(*words: object) -> bytes:
    return b"".join(json.dumps(word).encode() + b"\n" for word in words)


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (b"", {}),
        (messages({"mark": "x"}), {"mark": "x"}),
        (messages({"mark": "x"}, {"pid": 3}), {"mark": "x", "pid": 3}),
        (messages({"mark": "x"}) + b'{"pid": 3', {"mark": "x"}),  # cut by the parent's end
    ],
)
def test_listening_ends_with_the_input(sent, known):
    reader, writer = os.pipe()
    os.write(writer, sent)
    os.close(writer)
    told = guardian_module.listen(reader, os.getppid())
    os.close(reader)
    assert told == known


def test_listening_ends_with_a_goodbye_and_with_another_parent(monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, messages({"mark": "x"}, {"goodbye": True}))
    assert guardian_module.listen(reader, os.getppid())["goodbye"]
    monkeypatch.setattr(guardian_module, "_LOOK_EVERY_MS", 10)
    # Somebody else holds the pipe open, and the parent is not who it was.
    assert guardian_module.listen(reader, os.getppid() + 1) == {}
    os.close(reader)
    os.close(writer)


def test_a_program_whose_number_went_to_another_is_not_touched(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    told = {
        "folder": str(tmp_path),
        "mark": "a mark that nobody has",
        "pid": bystander.pid,
        "command": ["python"],
        "log": "",
        "started": "",
        "start_s": time.monotonic(),
        "timeout_s": 1.0,
        "remove_cache": True,
        "oom_counter": "",
        "oom_before": 0,
        "harness": "0",
    }
    aftermath.finish(told)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    ended = read_ended(tmp_path)
    assert ended is not None
    assert (ended.sent, ended.parent_killed, ended.oom_kills) == ([], True, None)
    assert not (tmp_path / CHILD_LOG).exists()


def test_no_guardian_is_left_and_one_that_cannot_be_started_is_done_without(
    prepare, monkeypatch
) -> None:
    before = set(psutil.Process().children())  # other tests' processes
    supervise(prepare("pass"))
    assert set(psutil.Process().children()) <= before
    launch = prepare("print('ran')")
    monkeypatch.setattr(guard.sys, "executable", "/no/such/python")
    ended = supervise(launch)
    assert ended.stderr_tail == "ran\n"
    assert ended.guardian_failure == "it could not be started: No such file or directory"


WAITS_FOR_THE_GUARDIANS_END = """
    import os, psutil, sys, time
    parent, dead = psutil.Process(os.getppid()), psutil.STATUS_ZOMBIE
    new = [child for child in parent.children() if str(child.pid) not in sys.argv]
    (guardian,) = (child for child in new if child.pid != os.getpid())
    while guardian.status() != dead:
        time.sleep(0.01)
"""


def test_a_guardian_that_ends_before_the_program_does_is_said_to(
    prepare, monkeypatch, tmp_path
) -> None:
    assert supervise(prepare("pass")).guardian_failure == ""
    script = tmp_path / "guardian.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(guard.guardian, "__file__", str(script))
    others = [str(child.pid) for child in psutil.Process().children()]  # other tests' processes
    ended = supervise(prepare(WAITS_FOR_THE_GUARDIANS_END, *others))
    assert ended.exit_code == 0
    assert ended.guardian_failure == "it ended before the program did, with exit code 3"
