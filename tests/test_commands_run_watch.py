"""``harness.run`` and ``harness.watch`` as commands: bad input, exit codes, what they leave."""

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

from harness import flow, run, watch
from harness.child.recorder import Recorder
from harness.diagnosis.report import Report, loads
from harness.events.ended import Ended
from harness.spec import RunSpec, arguments_of_file

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


def fake_python(python: str, torch: str) -> str:
    answer = json.dumps({"python": python, "torch": torch, "cuda": "", "module": True})
    return f"#!/bin/sh\necho '{answer}'\n"


FILES = {
    "a-file": "",
    "broken.toml": "[train\n",
    "table.toml": "[trainer]\nthreads = 3\n",
    "key.toml": "[train]\nthread = 3\n",
    "value.toml": "[train]\nthreads = 'many'\n",
    "empty-word.toml": "[train]\nbackend = ''\n",
    "nul.toml": '[train]\nbackend = "a\\u0000b"\n',
    "old-python": fake_python("3.10.1", ""),
    "old-torch": fake_python("3.11.1", "2.10.0"),
    "script.py": "",
}

BAD_RUN = {
    "--warmup bogus": "--warmup",
    "--threads 0": "--threads must be at least 1",
    "--threads three": "--threads",
    "--threads 10000": "--threads: at most 512 drafters are possible, got 10000",
    "--layout 5+9999": "--layout 5+9999: at most 512 drafters are possible",
    "--layout 513+3": "--layout 513+3: at most 512 targets are possible",
    "--no-such-flag": "no-such-flag",
    "--layout five": "--layout 'five' is not TARGETS+DRAFTERS",
    "--layout 5+3 --threads 4": "--layout 5+3",
    "--seq-lens 4": "shorter than a block",
    "--anchors some": "--anchors",
    "--timeout 0": "--timeout must be a number of seconds above 0",
    "--timeout nan": "--timeout must be a number of seconds above 0",
    "--max-events-mb 0": "--max-events-mb must be at least 1",
    "--no-probe everything": "there is no probe everything",
    "--max-events-mb 99999999999999999999": "must be at least 1 and at most 1048576",
    "--timeout 1e13": "--timeout must be a number of seconds above 0 and at most a year",
    "--out=": "--out is empty",
    "--schedule=": "--schedule is empty",
    "--expect": "--expect: it names nothing",
    "--no-probe ,": "--no-probe: it names nothing",
    "--jobs 0": "--explore and --jobs count runs: at least 1",
    "--jobs 1000000": "--jobs is at most 512",
    "--explore 99999999999999999999": "--explore is at most 1000000",
    "--search-seed 99999999999999999999": "--search-seed must be between 0 and 2**63 - 1",
    "--steps 99999999999999999999": "--steps must be at most 1099511627776",
    "--seq-lens 99999999999999999999": "--seq-lens: a sequence is at most 1048576 tokens long",
    "--lr inf": "--lr must be finite",
    "--spec empty-word.toml": "--backend is empty",
    "--spec nul.toml": "--backend holds a NUL character",
    "script.py": "any other program: python -m harness.watch -- script.py",
    "--threads 2 -- script.py": "any other program: python -m harness.watch -- script.py",
    "--expect CR1": "CR1 is neither clean nor a code",
    "--expect CR999": "there is no cause CR999",
    "--expect clean,CR101": "clean stands alone",
    "--expect CR101 --expect-only CR101": "exclude each other",
    "--spec absent.toml": "--spec absent.toml: No such file",
    "--spec broken.toml": "--spec broken.toml: ",
    "--spec table.toml": "no table [trainer]",
    "--spec key.toml": "[train] has no key thread",
    "--spec value.toml": "--threads",
    "--out a-file": "cannot write to the output folder a-file",
    "--out a-file/deep": "cannot write to the output folder a-file/deep",
}
BAD_WATCH = {
    "": "no program is given after --",
    "script.py": "put -- before the program: -- script.py",
    "-- absent.py": "absent.py: no such script",
    "absent.py --steps 3": "put -- before the program: -- absent.py --steps 3",
    "--timeout 5 script.py": "put -- before the program: -- script.py",
    "--passthrough script.py": "put -- before the program: -- script.py",
    "--no-probe lock,fx script.py -- x": "put -- before the program: -- script.py",
    "./train --steps 3": "put -- before the program: -- ./train --steps 3",
    "--timeout 5 train": "put -- before the program: -- train",
    "--expect CR101 script.py": "put -- before the program: -- script.py",
    "-c pass": "put -- before the program: -- -c pass",
    "--python python -- python script.py": "leave the interpreter out: -- script.py (--python is",
    "-- bash script.sh": "is no Python script",
    "--python= -- script.py": "--python is empty",
    "-m pytest tests": "put -- before the program: -- -m pytest tests",
    "-- -I script.py": "python -I keeps the watch out",
    "-- -m absent.module": "has no module named absent.module",
    "--python absent -- script.py": "cannot start the interpreter absent",
    "--python ./old-python -- script.py": "Python 3.11 or later is needed",
    "--python ./old-torch -- script.py": "torch 2.10.0 is not supported; 2.11 to 2.15 is",
    "--python ./a-file -- script.py": "cannot start the interpreter ./a-file",
    "--timeout -1 -- script.py": "--timeout must be",
    "--out a-file -- script.py": "cannot write to the output folder",
}


@pytest.fixture
def files(tmp_path) -> list[Path]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        if name.startswith("old"):
            (tmp_path / name).chmod(0o755)
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [(run.main, words, message) for words, message in BAD_RUN.items()]
    + [(watch.main, words, message) for words, message in BAD_WATCH.items()],
    ids=[f"run {words}" for words in BAD_RUN] + [f"watch {words}" for words in BAD_WATCH],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    main, words, message, files, tmp_path, capsys
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    prog = "harness.run" if main is run.main else "harness.watch"
    assert said.err.startswith(f"{prog}: error: ")
    assert message in said.err
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("flag", ["--out", "--alert"])
def test_a_blank_word_is_refused_where_it_would_be_run_or_made(flag, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main([flag, "  "])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"harness.run: error: {flag} is blank\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_say_that_nothing_is_named(tmp_path) -> None:
    (tmp_path / "spec.toml").write_text("[watch]\nexpect = []\nstop_on = ''\nno_probe = []\n")
    assert arguments_of_file(tmp_path / "spec.toml") == []


def test_what_only_the_trainer_can_refuse_is_one_line_too(tmp_path) -> None:
    (tmp_path / "data.txt").write_bytes(b"\x00\xff\x00binary")
    done = command("harness.run", "--data", "data.txt", "--threads", "1")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("harness.run: error: ")
    assert "data.txt" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


@pytest.mark.parametrize(
    ("point", "worked"),
    [
        ("thread_start", False),
        ("block_mask", False),
        ("wrapper", True),
        ("guard_miss", True),
        ("dynamo_compile", True),
        ("phase", True),
        ("step", True),  # the one that goes to a segment of its own
    ],
)
def test_exit_code_2_after_some_work_is_not_taken_for_a_usage_error(
    tmp_path, point, worked
) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("header", {"schema": 1})
    for _ in range(9000):  # more than is read at once
        recorder.emit("thread_start", {"name": "a thread of some library that starts many"})
    recorder.emit(point, {}, edge="enter")
    ended = Ended(exit_code=2, stderr_tail="warning: x\ntrain: error: --data: is empty\n")
    assert flow.refusal(ended, tmp_path) == (None if worked else "--data: is empty")
    assert flow.refusal(Ended(exit_code=2, stderr_tail="Traceback\nE: x"), tmp_path) is None
    assert flow.refusal(Ended(exit_code=1, stderr_tail=ended.stderr_tail), tmp_path) is None


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
    text = """
        import time
        try: print("up", flush=True); time.sleep(60)
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


def test_a_hang_is_ended_at_the_deadline_and_reported() -> None:
    text = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
    began = time.monotonic()
    code = watch.main(["--timeout", "2.5", "--", program(text)])
    assert 2.5 < time.monotonic() - began < 40
    assert code in {1, 4}
    report = loads((run_folder() / "report.json").read_bytes())
    assert report.ended is not None
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
