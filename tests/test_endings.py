"""Ends of runs as a user meets them: signals, terminals that vanish, full disks, early Ctrl-C."""

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from harness import watch
from harness.diagnosis.report import Report, loads
from harness.events.ended import read_ended

ROOT = Path(__file__).parents[1]
UP = "import os, time; print('up', os.getpid(), flush=True); time.sleep(600)\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def start():
    """Start commands with piped output; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def command(*words: str, **options) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-m", *words], **{**pipes, **options})
        started.append(process)
        return process

    yield command
    for process in started:
        process.kill()
        process.communicate()


def program(text: str) -> str:
    Path("program.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return "program.py"


def the_report() -> Report:
    (path,) = Path("reports").glob("*/report.json")
    return loads(path.read_bytes())


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def up(process: subprocess.Popen[str]) -> int:
    """The program's process id, once it has printed it."""
    line = process.stdout.readline()
    assert line.startswith("up "), line
    return int(line.split()[1])


def asleep(pid: int) -> psutil.Process:
    """The program, once it has come to its sleep: that is what will be told of it.

    A signal for one of Python's handlers that came just before would be handled after the sleep.
    """
    watched = psutil.Process(pid)
    wait_for(lambda: watched.status() == psutil.STATUS_SLEEPING)
    return watched


FROM_OUTSIDE = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL]


@pytest.mark.parametrize("number", FROM_OUTSIDE, ids=lambda n: n.name)
def test_a_signal_to_the_program(start, number) -> None:
    process = start("harness.watch", "--", program(UP))
    asleep(up(process)).send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    report = the_report()
    assert codes(report) == ["CR906"]
    assert report.headline == f"The program was killed from outside by {number.name}."
    assert "CR906" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_the_same_signal_to_the_harness_reads_differently(start, number) -> None:
    process = start("harness.watch", "--", program(UP))
    watched = asleep(up(process))
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert not runs(watched)
    report = the_report()
    assert codes(report) == ["CR906"]
    assert report.headline == (
        f"The harness was told to end by {number.name}, and the program was ended by {number.name}."
    )
    said = " ".join(out.split())
    assert f"The harness was told to end by {number.name} and passed it on." in said
    assert "`MainThread` waited for a sleep to end in `<module>`" in said


def test_a_terminal_that_vanishes_takes_no_report_along(start) -> None:
    """The kernel tells the session's leader, and every write to the terminal fails from then on."""
    master, slave = pty.openpty()
    # It prints nothing more once the terminal may go, since that would be an error of its own.
    text = "import os, time; print('up'); open('up', 'w').write('yes'); time.sleep(600)"
    process = start(
        *("harness.watch", "--", program(text)),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=lambda: (os.setsid(), __import__("fcntl").ioctl(0, 0x540E, 0)),
    )
    os.close(slave)
    wait_for(lambda: Path("up").exists() and Path("up").read_text())
    os.close(master)
    process.wait(60)
    report = the_report()
    assert codes(report) == ["CR906"]
    assert report.headline.startswith("The harness was told to end by SIGHUP")
    (folder,) = Path("reports").iterdir()
    assert {"report.md", "report.html", "ended.json"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "harness-failure.txt").exists()
    assert process.returncode == 1


def test_nohup_means_that_the_terminal_may_go(start) -> None:
    process = start(
        *("harness.watch", "--timeout", "60", "--", program("print('up', 0, flush=True); input()")),
        stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    up(process)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate("go on\n", timeout=60)
    assert process.returncode == 5
    assert the_report().verdict == "nothing ran"
    assert "told to end" not in out


def test_a_message_to_the_user_is_shown(capfd) -> None:
    assert watch.main(["--", program("import sys; sys.exit('no shards found')")]) == 1
    out, err = capfd.readouterr()
    assert "no shards found" in err
    report = the_report()
    assert report.headline == "The program ended with exit code 1 by itself: no shards found."
    assert "Read the traceback" not in out


def test_a_program_that_leaves_by_os_exit_has_an_end() -> None:
    watch.main(["--", program("import os; os._exit(9)")])
    report = the_report()
    assert codes(report) == ["CR905"]
    assert "exit code 9" in report.headline
    assert report.not_watched == ()


def test_a_crash_of_a_forked_child_is_not_the_programs() -> None:
    text = """
        import os, signal
        pid = os.fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGSEGV)
        assert os.waitpid(pid, 0)[1] & 0x7F == signal.SIGSEGV
    """
    assert watch.main(["--", program(text)]) == 5
    assert codes(the_report()) == []


def test_hundreds_of_threads_and_a_kill(start) -> None:
    text = """
        import os, threading, time
        lock = threading.Lock(); lock.acquire()
        for n in range(500): threading.Thread(target=lock.acquire, daemon=True).start()
        print("up", os.getpid(), flush=True); lock.acquire()
    """
    process = start("harness.watch", "--", program(text))
    os.kill(up(process), signal.SIGKILL)
    process.communicate(timeout=60)
    report = the_report()
    assert codes(report) == ["CR906"]
    (folder,) = Path("reports").iterdir()
    assert (folder / "events.jsonl").read_bytes().count(b'"point": "thread_start"') == 500


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """A disk of so many bytes; skips where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = (
        shutil.which("mount")
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )
    if not mounted:
        pytest.skip("no right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


FILLS_THE_DISK = """
    import os, threading, sys
    folder = os.path.dirname(os.environ["TORCHINDUCTOR_CACHE_DIR"].rstrip("/"))
    t = threading.Thread(target=int, name="before"); t.start(); t.join()
    with open(os.path.dirname(folder) + "/ballast", "wb", buffering=0) as file:
        try:
            while True: file.write(b"x" * 512)
        except OSError: pass
    for n in range(200):
        t = threading.Thread(target=int, name="after"); t.start(); t.join()
    print("the program went on", flush=True)
    sys.exit(3)
"""


def test_a_full_disk_ends_neither_the_program_nor_the_report(start, tmp_path) -> None:
    with small_disk(tmp_path / "small", "256k") as disk:
        process = start("harness.watch", "--out", str(disk), "--", program(FILLS_THE_DISK))
        out, err = process.communicate(timeout=60)
        (folder,) = (path for path in disk.iterdir() if path.is_dir())
        recorded = (folder / "events.jsonl").read_bytes()
    assert out.startswith("the program went on\n")
    assert process.returncode == 1
    # It could not be written any more, so it is at least printed.
    assert "The program ended with exit code 3 by itself" in " ".join(out.split())
    assert "disk was full" in " ".join(out.split())
    assert "Full report" not in out
    assert "The full report could not be written" in out
    assert "the report cannot be written to" in err
    assert "Traceback" not in err
    assert b'"before"' in recorded


def test_a_limit_on_the_size_of_files_is_a_full_disk_too(capfd) -> None:
    text = """
        import resource, sys, threading
        sys.dont_write_bytecode = True  # a .pyc that is cut short is taken for whole (gh-126606)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        for n in range(200):
            t = threading.Thread(target=int); t.start(); t.join()
        print("the program went on")
    """
    code = watch.main(["--", program(text)])
    assert capfd.readouterr().out.startswith("the program went on\n")
    report = the_report()
    assert (report.verdict, code) == ("incomplete", 4)
    assert any("its recording has no end" in item.reason for item in report.not_watched)
    assert any(item.state == "cut" for item in report.not_watched)


COMMANDS = ["harness.run", "harness.watch", "harness.report", "harness.doctor", "harness.explain"]


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_while_python_still_imports_is_one_line(start, name, tmp_path) -> None:
    """A file that is imported on the way stops there until the signal has been sent."""
    (tmp_path / "slow").mkdir()
    os.mkfifo(tmp_path / "reached")
    # Every command's module imports this one, after the package that it is in.
    (tmp_path / "slow" / "tyro.py").write_text(
        f"open({str(tmp_path / 'reached')!r}, 'w').close()\nimport time\n"
        "while True: time.sleep(0.01)  # between two of them Python looks for signals\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/slow:{ROOT}"}
    process = start(name, env=environment)
    with (tmp_path / "reached").open() as reached:
        reached.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_importing_the_package_changes_no_signal() -> None:
    code = (
        "import signal; before = signal.getsignal(2); import harness, harness.run;"
        "assert signal.getsignal(2) is before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_harness_killed_at_once_leaves_nothing_running(start) -> None:
    process = start("harness.watch", "--", program(UP))
    watched = psutil.Process(up(process))
    guardians = [
        child
        for child in psutil.Process(process.pid).children()
        if "guardian.py" in " ".join(child.cmdline())
    ]
    assert len(guardians) == 1
    process.kill()
    # The output ends with the program: the guardian does not hold it open.
    process.communicate(timeout=60)
    wait_for(lambda: not runs(guardians[0]))
    assert not runs(watched)
    (folder,) = Path("reports").iterdir()
    ended = read_ended(folder)
    assert ended is not None
    assert ended.parent_killed
    again = start("harness.report", str(folder))
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 1
    assert "The harness itself was killed" in " ".join(out.split())


def runs(process: psutil.Process) -> bool:
    """Whether it does; one that has ended stays for as long as nobody asks how."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


WITHOUT_PY_SPY = """
import sys
from harness import watch
from harness.supervise import process, stacks
process.take_stacks = lambda *_: stacks.Stacks("no right to look into other processes")
sys.exit(watch.main(sys.argv[1:]))
"""


def test_two_locks_taken_crosswise_are_told_where_py_spy_may_not_look() -> None:
    """Then faulthandler speaks, which calls threads by another id than the system's."""
    crossed = (str(ROOT / "repro" / "programs" / "lock_order.py"), "crossed")
    command = [sys.executable, "-c", WITHOUT_PY_SPY, "--timeout", "30", "--", *crossed]
    subprocess.run(command, capture_output=True, check=False, timeout=120)
    report = the_report()
    assert codes(report) == ["CR307"]
    assert "waited for `registry`; `server` held `registry`" in report.headline
    assert "0x0" not in "".join(said.text for said in report.findings[0].statements)
