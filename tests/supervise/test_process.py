"""How a program ends, and what the supervisor says of it."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dflash_min.errors import UsageError
from harness.events.ended import Ended, read_ended
from harness.events.schema import SCHEMA_VERSION
from harness.supervise import process as process_module
from harness.supervise.ending import Faults, split_faults, take_faults
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.oom import OomCounter
from harness.supervise.process import supervise
from harness.supervise.stacks import Stacks


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]


ENDS = {
    "of itself": ("print('done')", 0, None),
    "with a code": ("import sys; sys.exit(9)", 9, None),
    "by an exception": ("1 / 0", 1, None),
    "by a crash": ("import ctypes; ctypes.string_at(0)", None, signal.SIGSEGV),
    "by an abort": ("import os; os.abort()", None, signal.SIGABRT),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
    "terminated": ("import os, signal; os.kill(os.getpid(), 15)", None, signal.SIGTERM),
}


@pytest.mark.parametrize("how", ENDS)
def test_exit_code_and_signal(supervised, how) -> None:
    text, code, number = ENDS[how]
    ended, folder = supervised(text)
    assert (ended.exit_code, ended.signal) == (code, number)
    assert ended.signal_name == ("" if number is None else number.name)
    # No crash raises SIGKILL or SIGTERM.
    assert ended.killed_from_outside == (how in {"killed", "terminated"})
    assert not ended.deadline_hit
    assert ended.idle_at_deadline is None
    assert ended.stacks == ""
    assert ("string_at" in ended.fatal_stacks) == (how == "by a crash")
    assert 0 < ended.wall_s < 20
    assert read_ended(folder) == ended
    header = events(folder)[0]["data"]
    assert header["schema"] == SCHEMA_VERSION
    assert header["argv"] == ended.command


def test_the_output_is_kept_and_its_end_reported(supervised) -> None:
    program = """
        import os, sys
        print("x" * 100_000); print("to stdout"); print("to stderr", file=sys.stderr)
        os.kill(os.getpid(), 9)
    """
    ended, folder = supervised(program)
    assert ended.stderr_tail.endswith("to stdout\nto stderr\n")
    assert len(ended.stderr_tail) < 20_000
    assert len((folder / "child.log").read_text()) > 100_000


FAILS_IN_A_THREAD = "import threading; threading.Thread(target=lambda: 1 / 0).start()"


def test_every_processs_recording_is_listed_with_its_size(supervised) -> None:
    ended, folder = supervised(
        f"""
        import subprocess, sys
        {FAILS_IN_A_THREAD}
        subprocess.run([sys.executable, "-c", {FAILS_IN_A_THREAD!r}], check=True)
        """
    )
    (other,) = folder.glob("events-*.jsonl")
    sizes = {path.name: path.stat().st_size for path in (folder / "events.jsonl", other)}
    assert ended.recordings == sizes
    assert read_ended(folder).recordings == sizes


@pytest.mark.parametrize("keep", [False, True])
def test_the_compile_caches_are_fresh_and_removed_unless_kept(
    supervised, keep, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    program = """
        import os
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            folder = os.environ.get(name, "")
            if folder: os.makedirs(folder); open(folder + "/kernel", "w").close()
            print(folder)
    """
    _, folder = supervised(program, keep_cache=keep)
    inductor, triton = (folder / "child.log").read_text().split("\n")[:2]
    header = events(folder)[0]["data"]
    assert header["cache_dir"] == inductor
    if keep:
        assert header["cache_state"] == "kept"
        assert (inductor, triton) == (str(tmp_path / "mine"), "")
        assert (tmp_path / "mine" / "kernel").exists()
    else:
        assert header["cache_state"] == "cold"
        assert Path(inductor).parent == Path(triton).parent == folder / "cache"
        assert not (folder / "cache").exists()


IDLE = {
    "a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a child": "import subprocess; subprocess.run(['sleep', '60'])",
    "a poll": "import time\nwhile True: time.sleep(0.05)",
}


@pytest.mark.parametrize("what", IDLE)
def test_a_program_that_waits_is_idle_at_the_deadline(supervised, what) -> None:
    ended, _ = supervised(IDLE[what], timeout_s=2.5)
    assert ended.deadline_hit
    assert ended.idle_at_deadline is True
    assert ended.signal == signal.SIGTERM
    assert not ended.killed_from_outside
    assert 2.5 <= ended.wall_s < 15
    assert "program.py" in ended.stacks


BUSY = {
    "computing": "while True: pass",
    "a child computing": """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "while True: pass"])
    """,
    "recording": """
        import threading, time
        while True: t = threading.Thread(target=time.sleep, args=(0.2,)); t.start(); t.join()
    """,
}


@pytest.mark.parametrize("what", BUSY)
def test_a_program_that_works_is_not_idle_at_the_deadline(supervised, what) -> None:
    ended, _ = supervised(BUSY[what], timeout_s=2.5)
    assert ended.deadline_hit
    assert ended.idle_at_deadline is False


def test_the_stacks_at_the_deadline_name_every_thread(supervised) -> None:
    program = """
        import threading
        lock = threading.Lock(); lock.acquire()
        def holder_of_nothing(): lock.acquire()
        threading.Thread(target=holder_of_nothing, name="stuck", daemon=True).start()
        lock.acquire()
    """
    ended, _ = supervised(program, timeout_s=2.0)
    assert "holder_of_nothing" in ended.stacks
    assert '"stuck"' in ended.stacks


def test_without_py_spy_the_programs_own_faulthandler_gives_the_stacks(
    supervised, monkeypatch
) -> None:
    monkeypatch.setattr(process_module, "take_stacks", lambda *_: Stacks("no right to look"))
    ended, _ = supervised(
        "def waits(): input_lock.acquire()\nimport threading\n"
        "input_lock = threading.Lock(); input_lock.acquire(); waits()",
        timeout_s=2.5,
    )
    assert ended.stacks.startswith("no right to look; ")
    assert "in waits" in ended.stacks
    assert ended.fatal_stacks == ""


def test_a_program_that_ignores_sigterm_is_killed(supervised, monkeypatch) -> None:
    monkeypatch.setattr(process_module, "_TERM_GRACE_S", 0.3)
    program = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)
    """
    ended, _ = supervised(program, timeout_s=1.5)
    assert ended.signal == signal.SIGKILL
    assert ended.deadline_hit
    assert not ended.killed_from_outside


def test_a_program_may_save_something_at_the_deadline(supervised) -> None:
    program = """
        import signal, sys, time
        def save(*_): print("saved"); sys.exit(5)
        signal.signal(signal.SIGTERM, save); time.sleep(60)
    """
    ended, _ = supervised(program, timeout_s=1.5)
    assert (ended.exit_code, ended.signal, ended.deadline_hit) == (5, None, True)
    assert ended.stderr_tail == "saved\n"


LEFT_BEHIND = {
    "in its group": "subprocess.Popen([sys.executable, '-c', wait])",
    "in a session of its own": """
subprocess.Popen([sys.executable, '-c', wait], start_new_session=True)
""",
    "of a parent that is gone": """
subprocess.run([sys.executable, "-c",
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])", wait])
""",
    "deaf to SIGTERM": "subprocess.Popen([sys.executable, '-c', deaf])",
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_the_program_leaves_behind_is_ended(supervised, what, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(process_module.end_leftovers, "__defaults__", (0.3,))
    program = f"""
import subprocess, sys, time, os
told = sys.argv[1]
wait = f"import os, time; open({{told!r}}, 'w').write(str(os.getpid())); time.sleep(60)"
deaf = "import signal; signal.signal(15, signal.SIG_IGN);" + wait
{LEFT_BEHIND[what]}
while not os.path.exists(told) or not open(told).read(): time.sleep(0.01)
"""
    told = tmp_path / "pid"
    ended, _ = supervised(program, str(told))
    assert ended.exit_code == 0
    assert ended.leftovers == 1
    assert not _alive(int(told.read_text()))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_helpers_that_end_by_themselves_are_not_counted(supervised) -> None:
    ended, _ = supervised("import subprocess; subprocess.Popen(['sleep', '0.5'])")
    assert ended.leftovers == 0


def test_a_program_that_cannot_be_started_is_a_usage_error(tmp_path) -> None:
    launch = Launch(("/no/such/program",), tmp_path, WatchSettings(), 5.0)
    with pytest.raises(UsageError, match="cannot start /no/such/program: No such file"):
        supervise(launch)


def test_output_and_input_are_inherited_unless_they_are_captured(prepare, tmp_path) -> None:
    """Run in a process of its own, whose descriptors are known."""
    launch = prepare("print(input()); import sys; print('err', file=sys.stderr)")
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from harness.supervise.launch import Launch, WatchSettings\n"
        "from harness.supervise.process import supervise\n"
        "supervise(Launch(tuple(sys.argv[2:]), Path(sys.argv[1]), WatchSettings(), 20.0))\n"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, str(script), str(launch.folder), *launch.command],
        input="typed\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert (done.stdout, done.stderr) == ("typed\n", "err\n")


def _signal_when(folder: Path, ready: str, *numbers: int, gap_s: float = 0.0) -> threading.Thread:
    """Send ourselves signals as soon as the program has printed ``ready``."""

    def send() -> None:
        while ready not in (folder / "child.log").read_text():
            time.sleep(0.01)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(gap_s)

    (folder / "child.log").touch()
    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_ctrl_c_reaches_the_program_and_everything_in_its_group(prepare) -> None:
    program = """
        import subprocess, sys
        quiet = "import time; input()\\ntry: print('up', flush=True); time.sleep(60)\\n" \\
                "except KeyboardInterrupt: print('child', flush=True)"
        process = subprocess.Popen([sys.executable, "-c", quiet], stdin=subprocess.PIPE)
        try:
            # Only now may the child say that it is up, and the signal come.
            process.stdin.write(b"go\\n"); process.stdin.flush(); process.wait()
        except KeyboardInterrupt: process.wait(); print("stopped"); sys.exit(4)
    """
    launch = prepare(program)
    sender = _signal_when(launch.folder, "up", signal.SIGINT)
    ended = supervise(launch)
    sender.join()
    assert (ended.exit_code, ended.interrupted) == (4, True)
    assert not ended.killed_from_outside
    assert ended.stderr_tail.split() == ["up", "child", "stopped"]


def test_a_second_ctrl_c_ends_a_program_that_ignores_the_first(prepare) -> None:
    program = """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN); print("up", flush=True); time.sleep(60)
    """
    launch = prepare(program)
    sender = _signal_when(launch.folder, "up", signal.SIGINT, signal.SIGINT, gap_s=0.2)
    ended = supervise(launch)
    sender.join()
    assert (ended.signal, ended.interrupted) == (signal.SIGKILL, True)
    assert not ended.killed_from_outside
    assert ended.wall_s < 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_end_is_passed_on_and_comes_from_outside(prepare, number) -> None:
    launch = prepare("import time; print('up', flush=True); time.sleep(60)")
    sender = _signal_when(launch.folder, "up", number)
    ended = supervise(launch)
    sender.join()
    assert ended.signal == number
    assert ended.killed_from_outside
    assert not ended.interrupted
    assert ended.told_to_end == number.name
    assert ended.sent == [number.name]
    # What it was doing was looked at first.
    assert "program.py" in ended.stacks
    assert [wait.what for wait in ended.waits] == ["a sleep to end"]


def test_a_terminal_says_so_twice_and_means_it_once(prepare) -> None:
    """Hanging up, it sends SIGHUP from the shell and from the kernel."""
    program = """
        import signal, sys, time
        def save(*_): time.sleep(1); print("saved"); sys.exit(0)
        signal.signal(signal.SIGHUP, save); print("up", flush=True); time.sleep(60)
    """
    launch = prepare(program)
    sender = _signal_when(launch.folder, "up", signal.SIGHUP, signal.SIGHUP, gap_s=0.1)
    ended = supervise(launch)
    sender.join()
    assert (ended.exit_code, ended.told_to_end, ended.sent) == (0, "SIGHUP", ["SIGHUP"])
    assert ended.stderr_tail == "up\nsaved\n"


def test_a_signal_before_the_program_runs_is_passed_on_once_it_does(prepare, monkeypatch) -> None:
    start = process_module.find_counter

    def interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        return start()

    monkeypatch.setattr(process_module, "find_counter", interrupted)
    ended = supervise(prepare("import time; time.sleep(60)"))
    assert (ended.told_to_end, ended.signal) == ("SIGTERM", signal.SIGTERM)
    assert ended.wall_s < 30


def test_what_the_caller_wants_stops_the_program(prepare) -> None:
    launch = prepare("import time; print('up', flush=True); time.sleep(60)")

    def tick() -> str | None:
        return "found CR101" if "up" in (launch.folder / "child.log").read_text() else None

    ended = supervise(launch, tick)
    assert (ended.stopped_on, ended.signal, ended.sent) == ("found CR101", 15, ["SIGTERM"])
    assert not ended.killed_from_outside
    assert not ended.deadline_hit


def test_a_kill_by_the_kernel_for_want_of_memory_is_counted(prepare, monkeypatch, tmp_path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 3\n")
    monkeypatch.setattr(process_module, "find_counter", lambda: OomCounter(counter, 3))
    # The program stands for the kernel as well: it counts its own kill.
    program = """
        import os, sys
        open(sys.argv[1], "w").write("oom_kill 4\\n"); os.kill(os.getpid(), 9)
    """
    ended = supervise(prepare(program, str(counter)))
    assert (ended.oom_kills, ended.oom_counter) == (1, str(counter))
    assert ended.killed_from_outside


def test_without_a_counter_it_is_not_known(prepare, monkeypatch) -> None:
    monkeypatch.setattr(process_module, "find_counter", lambda: None)
    ended = supervise(prepare("import os; os.kill(os.getpid(), 9)"))
    assert (ended.oom_kills, ended.oom_counter) == (None, "")


def test_no_guardian_is_left_and_one_that_cannot_be_started_is_done_without(
    prepare, monkeypatch
) -> None:
    from harness.supervise import guard

    before = set(psutil.Process().children())  # other tests' processes
    supervise(prepare("pass"))
    assert set(psutil.Process().children()) <= before
    launch = prepare("print('ran')")
    monkeypatch.setattr(guard.sys, "executable", "/no/such/python")
    ended = supervise(launch)
    assert ended.stderr_tail == "ran\n"
    assert ended.guardian_failure == "it could not be started: No such file or directory"


WAITS_FOR_THE_GUARDIANS_END = """
    import os, psutil, time
    parent, dead = psutil.Process(os.getppid()), psutil.STATUS_ZOMBIE
    while not any(child.status() == dead for child in parent.children()):
        time.sleep(0.01)
"""


def test_a_guardian_that_ends_before_the_program_does_is_said_to(
    prepare, monkeypatch, tmp_path
) -> None:
    from harness.supervise import guard

    assert supervise(prepare("pass")).guardian_failure == ""
    script = tmp_path / "guardian.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(guard.guardian, "__file__", str(script))
    ended = supervise(prepare(WAITS_FOR_THE_GUARDIANS_END))
    assert ended.exit_code == 0
    assert ended.guardian_failure == "it ended before the program did, with exit code 3"


def test_the_callers_signal_handlers_come_back(supervised) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    supervised("pass")
    assert {number: signal.getsignal(number) for number in before} == before


def test_it_works_off_the_main_thread(prepare) -> None:
    launch = prepare("print('x')")
    ends: list[Ended] = []
    thread = threading.Thread(target=lambda: ends.append(supervise(launch)))
    thread.start()
    thread.join()
    assert ends[0].exit_code == 0


def test_why_the_watch_did_not_attach_is_reported(supervised) -> None:
    ended, folder = supervised("print('ran')", max_events_mb="many")
    assert ended.exit_code == 0
    assert "TypeError" in ended.child_failure
    assert not (folder / "events.jsonl").exists() or (folder / "events.jsonl").stat().st_size == 0


def test_faulthandlers_text_is_split_by_its_headings() -> None:
    fatal = "Fatal Python error: Segmentation fault\n\nThread 1\n"
    timeout = "Timeout (0:00:09)!\nThread 2\n"
    assert split_faults("") == ("", "")
    assert split_faults(fatal) == (fatal, "")
    assert split_faults(timeout) == ("", timeout)
    assert split_faults(timeout + fatal) == (fatal, timeout)


def test_a_crash_of_faulthandlers_own_does_not_hide_the_signal_before_it(tmp_path) -> None:
    segv, abort = "Fatal Python error: Segmentation fault\n", "Fatal Python error: Aborted\n"
    assert Faults(f"{abort}Thread 1\n  File {segv}").first_signal(11) == signal.SIGABRT
    assert Faults(segv).first_signal(11) == signal.SIGSEGV
    assert Faults("").first_signal(6) == signal.SIGABRT
    assert Faults(f"{abort}{segv}").first_signal(15) == signal.SIGTERM
    assert Faults(f"{abort}{segv}").first_signal(None) is None


def test_empty_files_of_faulthandlers_are_removed(tmp_path) -> None:
    (tmp_path / "faulthandler.txt").touch()
    (tmp_path / "faulthandler-7.txt").touch()
    (tmp_path / "faulthandler-8.txt").write_text("Fatal Python error: Aborted\n")
    assert take_faults(tmp_path) == Faults()
    assert [path.name for path in tmp_path.iterdir()] == ["faulthandler-8.txt"]
