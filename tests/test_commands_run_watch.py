"""``harness.run`` and ``harness.watch`` as commands: exit codes, and what they leave."""

import json
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from harness import flow, watch
from harness.diagnosis.report import Report, loads
from harness.spec import RunSpec, arguments_of_file
from harness.supervise import process as supervisor

ROOT = Path(__file__).parents[1]
REPORTS = {
    *("report.json", "report.md", "report.html", "trace.json"),
    *("events.jsonl", "ended.json", "run.json"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def command(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", name, *arguments], capture_output=True, text=True, check=False
    )


def program(text: str) -> str:
    Path("program.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return "program.py"


def run_folder() -> Path:
    (folder,) = Path("reports").iterdir()
    return folder


def test_what_only_the_trainer_can_refuse_is_one_line_too(tmp_path) -> None:
    (tmp_path / "data.txt").write_bytes(b"\x00\xff\x00binary")
    done = command("harness.run", "--data", "data.txt", "--threads", "1")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("harness.run: error: ")
    assert "data.txt" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


def test_a_program_without_compiled_code_is_nothing_ran_and_is_reported_all_the_same() -> None:
    done = command("harness.watch", "--", program("import sys; print(sys.argv[1:])"), "--x", "a b")
    assert done.returncode == 5
    assert done.stdout.startswith("['--x', 'a b']\n")
    assert "no call of compiled code was seen" in done.stdout
    folder = run_folder()
    assert done.stderr == f"harness.watch: recording in {folder.resolve()}\n"
    assert folder.name.endswith("-watch-program")
    assert {path.name for path in folder.iterdir()} == REPORTS
    report = loads((folder / "report.json").read_bytes())
    assert (report.verdict, report.exit_code) == ("nothing ran", 5)
    assert report.ended is not None
    assert report.ended.exit_code == 0
    assert report.replay == "python -m harness.watch -- program.py --x 'a b'"


def test_json_is_the_report_and_nothing_else() -> None:
    done = command("harness.watch", "--json", "--out", "elsewhere", "--", program("pass"))
    assert done.returncode == 5
    (folder,) = Path("elsewhere").iterdir()
    assert done.stdout == (folder / "report.json").read_text()
    assert json.loads(done.stdout)["verdict"] == "nothing ran"


ENDS = {
    "import sys; sys.exit(7)": 7,
    "1 / 0": 1,
    "pass": 0,
    "import ctypes; ctypes.string_at(0)": 139,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": 137,
}


@pytest.mark.parametrize("text", ENDS)
def test_passthrough_gives_the_programs_own_code(text) -> None:
    assert watch.main(["--passthrough", "--", program(text)]) == ENDS[text]
    assert {path.name for path in run_folder().iterdir()} >= REPORTS


def test_a_module_runs_as_python_would_run_it(capfd) -> None:
    Path("pack").mkdir()
    Path("pack/__init__.py").touch()
    Path("pack/train.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    watch.main(["--", "-m", "pack.train", "--lr", "1"])
    assert capfd.readouterr().out.startswith("__main__ pack ['--lr', '1']\n")
    assert run_folder().name.endswith("-watch-pack.train")


def test_an_interpreter_that_shuts_the_watch_out_is_a_failure_not_a_pass(tmp_path, capfd) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    python.chmod(0o755)
    assert watch.main(["--python", str(python), "--", program("print('ran')")]) == 3
    assert capfd.readouterr().out.startswith("ran\n")
    report = loads((run_folder() / "report.json").read_bytes())
    assert report.verdict == "failed"
    assert report.headline.startswith("The program was not watched: its interpreter did not load")


def test_ctrl_c_still_gives_the_report() -> None:
    # In short sleeps: Python looks for signals between instructions, so one that comes just before
    # a call that blocks is handled after it.
    text = """
        import time
        try:
            print("up", flush=True)
            while True: time.sleep(0.01)
        except KeyboardInterrupt: print("saved", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.watch", "--", program(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.startswith("saved\n")
    assert "Traceback" not in err
    report = loads((run_folder() / "report.json").read_bytes())
    assert report.ended is not None
    assert report.ended.interrupted


class FromUp:
    """The supervisor's clock: it stands still until the program has made the file ``up``.

    How long an interpreter takes to start is none of the program's time.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._late: float | None = None

    def monotonic(self) -> float:
        if self._late is None:
            if not Path("up").exists():
                return self._began
            self._late = time.monotonic() - self._began
        return time.monotonic() - self._late


def test_a_hang_is_ended_at_the_deadline_and_reported(monkeypatch) -> None:
    text = """
        import threading
        lock = threading.Lock(); lock.acquire(); open("up", "w").close(); lock.acquire()
    """
    monkeypatch.setattr(supervisor, "time", FromUp())
    code = watch.main(["--timeout", "2.5", "--", program(text)])
    assert code in {1, 4}
    report = loads((run_folder() / "report.json").read_bytes())
    assert report.ended is not None
    assert report.ended.wall_s >= 2.5
    assert (report.ended.deadline_hit, report.ended.idle_at_deadline) == (True, True)
    assert "program.py" in report.ended.stacks


def test_a_failing_diagnosis_loses_nothing(monkeypatch, capsys) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("a\nrule")

    monkeypatch.setattr(flow, "report_to_show", broken)
    assert watch.main(["--", program("pass")]) == 3
    folder = run_folder()
    assert {"events.jsonl", "ended.json"} <= {path.name for path in folder.iterdir()}
    assert "LookupError" in (folder / "harness-failure.txt").read_text()
    started, said = capsys.readouterr().err.splitlines()
    assert started.endswith(str(folder.resolve()))
    assert str(folder.resolve()) in said


@pytest.mark.parametrize("flag", ["", "--json"])
def test_a_reader_that_has_gone_is_no_failure(flag) -> None:
    watched = f"{sys.executable} -m harness.watch {flag} -- {program('pass')}"
    shell = f"{watched} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr == f"harness.watch: recording in {run_folder().resolve()}\n"


def test_a_spec_file_says_the_same_as_flags_which_outrank_it(tmp_path) -> None:
    (tmp_path / "spec.toml").write_text(
        "[train]\nthreads = 2\nwarmup = 'no_grad'\nseq_lens = [192, 224]\ndynamic = true\n"
        "activation_checkpointing = false\n[watch]\nexpect = ['CR101']\ntimeout = 90\n"
        "compile_detail = false\n"
    )
    from dflash_min.cli import parse

    argv = arguments_of_file(tmp_path / "spec.toml")
    spec = parse(RunSpec, [*argv, "--threads", "4"], prog="x", description="")
    assert (spec.train.threads, spec.train.warmup, spec.train.seq_lens) == (
        4,
        "no_grad",
        (192, 224),
    )
    assert (spec.train.dynamic, spec.train.activation_checkpointing) == ("true", False)
    assert (spec.watch.expect, spec.watch.timeout) == (("CR101",), 90.0)
    assert not spec.watch.compile_detail
    again = parse(RunSpec, spec.trainer_arguments(), prog="x", description="")
    assert again.train == spec.train
    assert spec.drafter_threads() == 4


@pytest.mark.parametrize(
    ("words", "threads"),
    [("", 3), ("--threads 5", 5), ("--layout 5+2", 2), ("--drafters cuda:0,cuda:1", 2)],
)
def test_how_many_drafter_threads_there_will_be(words, threads) -> None:
    from dflash_min.cli import parse

    assert parse(RunSpec, words.split(), prog="x", description="").drafter_threads() == threads


@pytest.mark.parametrize(
    ("words", "there", "backend"),
    [
        ("", False, "aot_eager"),
        ("", True, "inductor"),
        ("--device=cpu", True, "aot_eager"),
        ("--drafters=cuda:0,cuda:1", False, "inductor"),
        ("--device=cuda", False, "inductor"),
    ],
)
def test_run_starts_a_trainer_for_gpus_that_this_process_does_not_count(
    monkeypatch, words, there, backend
) -> None:
    from harness import run

    jobs = []
    monkeypatch.setattr(run, "gpu_is_visible", lambda build: there)
    monkeypatch.setattr(run, "run_job", lambda job: jobs.append(job) or 0)
    assert run.main(words.split()) == 0
    (job,) = jobs
    assert [*job.command[3:]] == words.split()
    assert job.scheduled.parts.backend == backend


def test_run_trains_under_the_watch_and_finds_the_no_grad_warmup(tmp_path) -> None:
    (tmp_path / "spec.toml").write_text("[train]\nthreads = 2\nsteps = 2\nwarmup = 'no_grad'\n")
    arguments = ("--spec", "spec.toml", "--device", "cpu", "--expect", "CR101", "--json")
    done = command("harness.run", *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    report = msgspec.json.decode(done.stdout)
    assert [f["code"] for f in report["findings"] if f["root"]] == ["CR101"]
    # A thread that dies of the race calls no backward, and stops the other.
    died = not {"CR301", "CR310"}.isdisjoint(finding["code"] for finding in report["findings"])
    assert died == bool(report["errors"])
    assert died or report["counts"]["threads_with_backward"] == 2
    folder = run_folder()
    assert folder.name.endswith("-run-no_grad")
    assert {path.name for path in folder.iterdir()} >= {*REPORTS, "child.log"}
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*")} == {0}
    assert not (folder / "cache").exists()
    assert list(folder.glob("steady-*.jsonl"))
    assert (folder / "child.log").stat().st_size > 0
    assert report["ended"]["command"][1:3] == ["-m", "dflash_min.train"]
    assert report["replay"] == f"python -m harness.run {' '.join(arguments)}"


def _report_again(folder: Path) -> Report:
    done = command("harness.report", str(folder), "--format", "json")
    assert done.stderr == ""
    return loads(done.stdout.encode())


def test_what_was_not_watched_reads_the_same_in_a_later_report(tmp_path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    python.chmod(0o755)
    assert watch.main(["--python", str(python), "--", program("")]) == 3
    first = (run_folder() / "report.json").read_bytes()
    assert _report_again(run_folder()) == loads(first)


KILLED = {
    "harness.watch": ("harness.watch", "--", "program.py"),
    "harness.run": ("harness.run", "--device", "cpu", "--threads", "2", "--steps", "100000"),
}


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_parent_leaves_no_orphan_and_a_report_can_be_made(name) -> None:
    program("import os; print('up', os.getpid(), flush=True); import time; time.sleep(600)")
    parent = subprocess.Popen(
        [sys.executable, "-m", *KILLED[name]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        child = _recorded_process(parent)
    finally:
        parent.kill()
        parent.wait(30)
    folder = run_folder()
    # Its guardian ends the program, and writes this when nothing is left.
    deadline = time.monotonic() + 60
    while not (folder / "ended.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    report = _report_again(folder)
    assert report.ended is not None
    assert report.ended.parent_killed
    assert (report.verdict, report.headline[:27]) == ("found", "The harness itself was kill")
    assert report.replay == shlex.join(["python", "-m", *KILLED[name]])
    assert report.expected_threads == (2 if name == "harness.run" else None)
    unmet = [item.reason for item in report.not_watched if item.name == "threads"]
    assert len(unmet) == (name == "harness.run")


def _recorded_process(parent: subprocess.Popen[bytes]) -> psutil.Process:
    """The watched program, once it has recorded something."""
    while parent.poll() is None:
        for path in Path("reports").glob("*/events.jsonl"):
            first = path.read_bytes().partition(b"\n")
            if first[1]:
                return psutil.Process(json.loads(first[0])["pid"])
        time.sleep(0.02)
    raise AssertionError("the parent ended before its program had started")


def test_a_full_disk_before_the_start_is_a_usage_error(monkeypatch, tmp_path, capsys) -> None:
    def full(folder: Path, run: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(flow, "write_run", full)
    with pytest.raises(SystemExit) as ended:
        watch.main(["--", program("")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(": No space left on device\n")
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_full_disk_at_the_end_does_not_hide_how_the_program_ended(monkeypatch) -> None:
    def full(folder: Path, ended: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.supervise.process.write_ended", full)
    assert watch.main(["--", program("import sys; sys.exit(7)")]) == 1
    report = loads((run_folder() / "report.json").read_bytes())
    assert [finding.code for finding in report.findings] == ["CR905"]
