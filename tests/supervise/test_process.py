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
from harness.supervise.launch import Launch, WatchSettings
from harness.supervise.oom import OomCounter
from harness.supervise.process import supervise


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
    began = time.monotonic()
    ended, folder = supervised(text)
    took = time.monotonic() - began
    assert (ended.exit_code, ended.signal) == (code, number)
    assert ended.signal_name == ("" if number is None else number.name)
    # No crash raises SIGKILL or SIGTERM.
    assert ended.killed_from_outside == (how in {"killed", "terminated"})
    assert not ended.deadline_hit
    assert ended.idle_at_deadline is None
    assert ended.stacks == ""
    assert ("string_at" in ended.fatal_stacks) == (how == "by a crash")
    assert 0 < ended.wall_s <= round(took, 3)
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
wait = f"import os, time; open({{told!r}}, 'w').write(str(os.getpid())); time.sleep(600)"
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


def test_helpers_that_end_by_themselves_are_not_counted(supervised, monkeypatch) -> None:
    monkeypatch.setattr(process_module.end_leftovers, "__defaults__", (60.0,))
    # Its input ends when the program does.
    helper = "import sys, time; sys.stdin.read(); time.sleep(0.5)"
    program = f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", {helper!r}], stdin=subprocess.PIPE)
    """
    ended, _ = supervised(program)
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
