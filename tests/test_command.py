"""What the commands have in common: errors of use and Ctrl-C."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_min.errors import UsageError
from harness import doctor, explain, report, run, watch
from harness.command import command

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "harness.run": (run, "run_job", []),
    "harness.watch": (watch, "run_job", ["--", "-c", "pass"]),
    "harness.report": (report, "make_report", ["."]),
    "harness.explain": (explain, "print_explanation", ["CR101"]),
    "harness.doctor": (doctor, "examine", []),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_is_130_and_an_error_of_use_one_line(name, monkeypatch, capsys) -> None:
    module, inner, arguments = COMMANDS[name]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def refused(*_: object, **__: object) -> None:
        raise UsageError("not\nlike \x1b[31mthis")

    monkeypatch.setattr(module, inner, interrupted)
    assert module.main(arguments) == 130
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, inner, refused)
    with pytest.raises(SystemExit) as stop:
        module.main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"{name}: error: not like \\x1b[31mthis\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_that_cannot_be_printed_is_one_line(name, monkeypatch, capsys) -> None:
    module, _, _ = COMMANDS[name]
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert module.main(["--help"]) == 3
        full.flush()  # as the interpreter does at its exit
    assert capsys.readouterr().err == f"{name}: error: stdout: No space left on device\n"


def test_arguments_are_the_processs_unless_they_are_given(monkeypatch) -> None:
    @command("x")
    def main(argv: list[str]) -> int:
        return len(argv)

    monkeypatch.setattr(sys, "argv", ["x", "a", "b"])
    assert main() == 2
    assert main([]) == 0
    assert main(("a",)) == 1


def start(*words: str, out: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT, stdout=out, stderr=subprocess.PIPE
    )


def test_a_report_is_interrupted_without_a_traceback(tmp_path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    process = start("harness.report", str(tmp_path))
    # Opening returns when the other end is opened too: the command is then at work.
    writer = os.open(tmp_path / "events.jsonl", os.O_WRONLY)
    process.send_signal(signal.SIGINT)
    # Before it reads, the signal is taken in; while it does; or when it has read that this is all.
    os.close(writer)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_an_explanation_is_interrupted_without_a_traceback() -> None:
    reader, writer = os.pipe()
    # With so small a pipe the command is in the middle of printing once something has come.
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = start("harness.explain", "--list", "--json", out=writer)
    os.close(writer)
    assert os.read(reader, 1) == b"["
    process.send_signal(signal.SIGINT)
    with os.fdopen(reader, "rb") as rest:
        rest.read()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_an_examination_is_interrupted_without_a_table(tmp_path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.doctor"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not list(tmp_path.glob("*/events.jsonl")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, b"")
    # Said where the self-test, in the middle of importing torch, takes long to end.
    waits = b"interrupted: the program has 30 s to end by itself; Ctrl-C again ends it now\n"
    assert err in {b"", waits}
