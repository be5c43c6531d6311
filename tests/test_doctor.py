"""The doctor: what is live, in words and as JSON, and its exit codes."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from harness import doctor
from harness.checkup import Checkup, ProbeCheck
from harness.child.attach import PROBES
from harness.exits import ExitCode
from harness.supervise.interpreter import Interpreter

HERE = Interpreter(path=sys.executable, python="3.11.7", torch="2.13.0", cuda="")


def checkup(*probes: ProbeCheck, **problems: str) -> Checkup:
    found = {"torch_problem": "", "self_test_problem": "", "py_spy_problem": "", **problems}
    return Checkup(interpreter=HERE, probes=probes, gpus=(), caches=(), **found)


def test_everything_is_live_here(capsys):
    assert doctor.main(["--json"]) == ExitCode.CLEAN
    report = json.loads(capsys.readouterr().out)
    states = {probe["name"]: probe["state"] for probe in report["probes"]}
    assert states == {name: "idle" if name == "workload" else "live" for name in PROBES}
    assert report["self_test_problem"] == report["torch_problem"] == ""
    assert report["interpreter"]["torch"].startswith("2.")
    assert report["exit_code"] == 0


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (checkup(ProbeCheck("lock", "live"), ProbeCheck("workload", "idle")), ExitCode.CLEAN),
        (checkup(ProbeCheck("lock", "live"), py_spy_problem="no rights"), ExitCode.CLEAN),
        (checkup(ProbeCheck("lock", "missing", "no symbol")), ExitCode.INCOMPLETE),
        (checkup(ProbeCheck("lock", "silent", "no event")), ExitCode.INCOMPLETE),
        (checkup(ProbeCheck("lock", "disabled")), ExitCode.INCOMPLETE),
        (checkup(ProbeCheck("lock", "conflict")), ExitCode.INCOMPLETE),
        (checkup(self_test_problem="it died of SIGSEGV"), ExitCode.INCOMPLETE),
        (checkup(torch_problem="torch 2.9.1 is not supported"), ExitCode.INCOMPLETE),
    ],
)
def test_the_exit_code_says_whether_a_verdict_could_rest_on_it(found, code):
    assert found.exit_code == code


def test_the_table_fits_80_columns_and_gives_the_reason(capsys):
    reason = "torch._dynamo.convert_frame.compile_lock (torch 2.11; this is 2.99)" * 2
    doctor.print_checkup(
        checkup(ProbeCheck("block_mask", "missing", reason), self_test_problem="it hung"),
        Console(width=80, file=sys.stdout),
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "missing" in "".join(lines)
    assert reason.replace(" ", "") in "".join(line[27:] for line in lines).replace(" ", "")


def test_no_torch_is_a_usage_error(tmp_path, capsys):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with pytest.raises(SystemExit) as stop:
        doctor.main(["--python", str(tmp_path / "bare" / "bin" / "python")])
    assert stop.value.code == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "has no torch; 2.11 to 2.15 is needed" in said
    assert len(said.splitlines()) == 1


def test_an_unknown_probe_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stop:
        doctor.main(["--no-probe", "nonsense"])
    assert stop.value.code == ExitCode.USAGE
    assert "no probe nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e13"])
def test_no_time_to_wait_is_a_usage_error(seconds, capsys):
    with pytest.raises(SystemExit) as stop:
        doctor.main([f"--timeout={seconds}"])
    assert stop.value.code == ExitCode.USAGE
    assert "--timeout must be a number of seconds above 0" in capsys.readouterr().err


def test_the_help_names_the_probes_and_says_what_the_states_mean(capsys):
    with pytest.raises(SystemExit):
        doctor.main(["--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for probe in PROBES:
        assert probe in said
    assert "idle (what it watches was never imported" in said


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_fits_a_narrow_terminal(width, capsys):
    doctor.print_checkup(
        checkup(ProbeCheck("block_mask", "missing", "a/rather/long/path " * 5)),
        Console(width=width, file=sys.stdout),
    )
    said = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in said.splitlines()) <= width
    assert "missing" in said
    assert said.count("a/rather") == 5
