"""Commands whose standard streams are closed or full: a verdict is not theirs to change."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_min import standard_streams
from harness import diagnose, explain, report, watch
from harness.__main__ import commands
from harness.__main__ import main as listing
from harness.exits import ExitCode

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests" / "logs" / "grad_mode+213.log"
NO_SPACE = "No space left on device"


@pytest.fixture
def full():
    with Path("/dev/full").open("w") as stream:
        yield stream
        standard_streams.drop(stream)


@pytest.fixture
def folder(tmp_path, capsys) -> str:
    """A run folder with a finding."""
    assert diagnose.main([str(LOG), "--out", str(tmp_path / "reports")]) == ExitCode.FOUND
    capsys.readouterr()
    (made,) = (tmp_path / "reports").iterdir()
    return str(made)


@pytest.mark.parametrize("name", commands())
def test_help_without_a_stdout_is_printed_to_nobody(name, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(name).main(["--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().err == ""


PRINTING = {
    "list": (listing, [], ExitCode.CLEAN),
    "explain --list": (explain.main, ["--list"], ExitCode.CLEAN),
    "explain --json": (explain.main, ["--list", "--json"], ExitCode.CLEAN),
    "diagnose": (diagnose.main, [str(LOG)], ExitCode.FOUND),
    "diagnose --json": (diagnose.main, [str(LOG), "--json"], ExitCode.FOUND),
    "report": (report.main, ["FOLDER"], ExitCode.FOUND),
    "report --format": (report.main, ["FOLDER", "--format", "md"], ExitCode.FOUND),
}


@pytest.mark.parametrize("name", PRINTING)
def test_what_only_prints(name, folder, monkeypatch, capsys, full) -> None:
    main, words, code = PRINTING[name]
    words = [folder if word == "FOLDER" else word for word in words]
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == code
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stdout", full)
    assert main(words) == ExitCode.FAILED
    full.flush()  # as the interpreter does at its exit
    assert capsys.readouterr().err.endswith(f": error: stdout: {NO_SPACE}\n")


def test_a_closed_standard_input_is_an_error_of_use(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for words in (["-"], ["-", "--out", str(tmp_path / "reports")]):
        with pytest.raises(SystemExit) as stop:
            diagnose.main(words)
        assert stop.value.code == ExitCode.USAGE
        said = capsys.readouterr().err
        assert said == "harness.diagnose: error: the standard input is closed\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("closed", "clogged", "flags", "code"),
    [
        (["stdout"], "", ["--passthrough"], 7),
        (["stdout", "stderr", "stdin"], "", ["--passthrough"], 7),
        ([], "stderr", ["--passthrough"], 7),
        (["stdout"], "", [], ExitCode.FOUND),
        ([], "stdout", ["--json"], ExitCode.FOUND),
        ([], "stdout", [], ExitCode.FOUND),
    ],
)
def test_a_watched_program_keeps_its_verdict(
    closed, clogged, flags, code, tmp_path, monkeypatch, capsys, full
) -> None:
    (tmp_path / "seven.py").write_text("import sys; sys.exit(7)\n")
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    if clogged:
        monkeypatch.setattr(sys, clogged, full)
    out = tmp_path / "reports"
    assert watch.main(["--out", str(out), *flags, "--", str(tmp_path / "seven.py")]) == code
    full.flush()
    (made,) = out.iterdir()
    assert (made / "report.md").exists()
    assert not (made / "harness-failure.txt").exists()
    if clogged == "stdout":
        said = f"harness.watch: the report cannot be printed: {NO_SPACE}\n"
        assert capsys.readouterr().err.endswith(said)


def test_descriptors_that_are_closed() -> None:
    shell = f"{sys.executable} -m harness.explain --list <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], cwd=ROOT, check=False).returncode == 0


def test_a_report_that_stderr_does_not_take_leaves_stdout_alone(
    tmp_path, monkeypatch, full
) -> None:
    (tmp_path / "ok.py").touch()
    monkeypatch.setattr(sys, "stderr", full)
    words = ["--out", str(tmp_path / "reports"), "--passthrough", "--", str(tmp_path / "ok.py")]
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert watch.main(words) == 0
        print("afterwards")
    assert (tmp_path / "out").read_text() == "afterwards\n"
