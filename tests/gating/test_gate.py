"""Gates over real processes: each status, and what cannot be a gate."""

import contextlib
import io
import shutil
import subprocess
import sys

import pytest

from harness.gating.folder import gate_folder

HEAD = 'schema = 1\nbaseline = "baseline.toml"\n'
TESTS = """
import os, signal, threading, pytest

def test_good(): pass
def test_broken(): assert 1 == 2
def test_turned_good(): pass
def test_long_known(): raise ValueError("known")
def test_still_known(): raise ValueError("known")
def test_aborts(): os.abort()
def test_after(): pass
"""
HANGS = """
import threading

def test_before(): pass
def test_hangs(): threading.Event().wait()
"""
SKIPS = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_skips(n): pytest.skip("not here")
"""
SUITE = f"""{HEAD}
[scenarios.verdicts]
pytest = ["test_verdicts.py"]

[scenarios.hangs]
pytest = ["test_hangs.py"]
budget_s = 20

[scenarios.skips]
pytest = ["test_skips.py"]

[scenarios.unmatched]
pytest = ["test_skips.py", "-k", "nothing_is_called_so"]

[specs.no_compiled_call]
watch = ["--", "plain.py"]

[specs.on_a_gpu]
run = []
gpus = 64

[performance.squares]
a = ["python", "-S", "-c", "print('took', 2.0)"]
b = ["python", "-S", "-c", "print('took', 5.0)"]
number = 'took ([0-9.]+)'
count = 3
"""
KNOWN = """
[[entry]]
scenario = "{scenario}"
test = "{test}"
torch = "{torch}"
device = "cpu"
result = "{result}"
{more}
"""
BAD = 'upstream = "pytorch/pytorch#123"\nexpires = {}\nrecorded = 2026-01-02\ncommit = "abcdef"'


def known(torch, test, result, more="", scenario="verdicts"):
    return KNOWN.format(scenario=scenario, test=test, torch=torch, result=result, more=more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, minor):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "gate.toml").write_text(SUITE)
    (folder / "test_verdicts.py").write_text(TESTS)
    (folder / "test_hangs.py").write_text(HANGS)
    (folder / "test_skips.py").write_text(SKIPS)
    (folder / "plain.py").write_text("print('plain')\n")
    test = "test_verdicts.py::test_"
    entries = [
        known(minor, f"{test}good", "passed", 'recorded = 2026-01-02\ncommit = "abcdef"'),
        known(minor, f"{test}broken", "passed", 'recorded = 2026-01-02\ncommit = "abcdef"'),
        known(minor, f"{test}turned_good", "failed", BAD.format("2999-01-01")),
        known(minor, f"{test}long_known", "failed", BAD.format("2026-01-03")),
        known(minor, f"{test}still_known", "failed", BAD.format("2999-01-01")),
        known(minor, f"{test}of_old", "passed"),
        known("9.9", f"{test}good", "skipped"),
        known(minor, "", "measured", "ratio = 1.0\ntolerance = 0.1", scenario="squares"),
    ]
    (folder / "baseline.toml").write_text("schema = 1\n" + "".join(entries))
    return folder


@pytest.fixture(scope="module")
def all_of_it(folder, run_gate):
    return run_gate(folder)


@pytest.mark.parametrize(
    ("name", "status", "result"),
    [
        ("test_verdicts.py::test_good", "same", "passed"),
        ("test_verdicts.py::test_broken", "regressed", "failed"),
        ("test_verdicts.py::test_turned_good", "improved", "passed"),
        ("test_verdicts.py::test_long_known", "expired", "failed"),
        ("test_verdicts.py::test_still_known", "same", "failed"),
        ("test_verdicts.py::test_aborts", "regressed", "aborted"),
        ("test_verdicts.py::test_after", "not run", "not run"),
        ("test_verdicts.py::test_of_old", "not run", "not run"),
        ("test_hangs.py::test_before", "same", "passed"),
        ("test_hangs.py::test_hangs", "incomplete", "hung"),
        ("test_skips.py::test_skips[1]", "not run", "skipped"),
        ("skips", "not run", "not run"),
        ("unmatched", "not run", "not run"),
        ("no_compiled_call", "not run", "nothing ran"),
        ("squares", "regressed", "measured"),
    ],
)
def test_what_each_comes_to(all_of_it, name, status, result) -> None:
    one = all_of_it.about(name)
    assert (one["status"], one["measured"]["result"]) == (status, result)


def test_the_gate_is_red(all_of_it) -> None:
    assert (all_of_it.code, all_of_it.gate["verdict"]) == (1, "red")


def test_why_and_since_when(all_of_it) -> None:
    broken = all_of_it.about("test_verdicts.py::test_broken")
    assert broken["since"] == "2026-01-02 (abcdef)"
    assert broken["measured"]["reproduce"] == "pytest test_verdicts.py::test_broken"
    assert broken["measured"]["frames"][0][1] == 5
    aborted = all_of_it.about("test_verdicts.py::test_aborts")["measured"]
    assert "aborted by SIGABRT" in aborted["said"]
    assert "Fatal Python error: Aborted" in aborted["detail"]
    hung = all_of_it.about("test_hangs.py::test_hangs")["measured"]
    assert "hung until its 20 s were up" in hung["said"]
    assert "test_hangs" in hung["detail"] or "py-spy" in hung["detail"]
    expired = all_of_it.about("test_verdicts.py::test_long_known")
    assert "pytorch/pytorch#123" in expired["because"]
    assert "remove its entry" in all_of_it.about("test_verdicts.py::test_turned_good")["because"]


def test_an_entry_for_another_machine_is_named_as_left_out(all_of_it) -> None:
    (left,) = all_of_it.gate["left_out"]
    assert left["name"] == "on_a_gpu"


def test_junit_of_the_parent_has_the_child_that_died(all_of_it) -> None:
    cases = {case.name: case for suite in all_of_it.junit for case in suite}
    kinds = {name: [type(r).__name__ for r in case.result] for name, case in cases.items()}
    assert kinds["test_verdicts.py::test_good"] == []
    assert kinds["test_verdicts.py::test_aborts"] == ["Failure"]
    assert kinds["test_hangs.py::test_hangs"] == ["Error"]
    assert kinds["test_skips.py::test_skips[1]"] == ["Error"]
    assert all_of_it.junit.failures == 5
    assert len(cases) == all_of_it.junit.tests


@pytest.mark.parametrize("name", ["skips", "unmatched"])
def test_nothing_that_ran_is_never_green(folder, run_gate, tmp_path, name) -> None:
    ended = run_gate(folder, "--only", name, out=tmp_path)
    assert (ended.code, ended.gate["verdict"]) == (5, "nothing ran")


def test_gpus_that_were_required_and_are_not_there_are_a_fault(folder, run_gate, tmp_path) -> None:
    flags = ("--only", "on_a_gpu", "--compile-race-require-gpu", "64")
    ended = run_gate(folder, *flags, out=tmp_path)
    assert ended.code == 5
    assert ended.gate["faults"] == ["no GPU visible: 64 are required, 0 can be seen"]


def refused(capsys, call):
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("harness.gate: error: ")
    return said[-1]


def test_a_corrupt_baseline_is_refused_with_the_line(tmp_path, run_gate, capsys) -> None:
    (tmp_path / "gate.toml").write_text(f"{HEAD}[scenarios.a]\npytest = ['x.py']\n")
    (tmp_path / "baseline.toml").write_text("schema = 1\n[[entry]]\nscenario = \n")
    said = refused(capsys, lambda: run_gate(tmp_path))
    assert f"{tmp_path}/baseline.toml:3: " in said


def test_a_second_gate_on_the_same_folder_is_refused(tmp_path, run_gate, capsys) -> None:
    (tmp_path / "gate.toml").write_text(f"{HEAD}[scenarios.a]\npytest = ['x.py']\n")
    program = (
        "import sys; from pathlib import Path\n"
        "from harness.gating.folder import gate_folder\n"
        "with gate_folder(Path(sys.argv[1])): print('holds it', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"holds it\n"
        said = refused(capsys, lambda: run_gate(tmp_path))
        first.kill()
    assert f"another gate (process {first.pid}) writes to {tmp_path / 'out'}" in said
    with gate_folder(tmp_path / "out"):  # its end, however it came, lets go
        pass


def test_a_plugin_that_runs_failed_tests_again_is_refused(
    tmp_path, run_gate, capsys, monkeypatch
) -> None:
    (tmp_path / "gate.toml").write_text(f"{HEAD}[scenarios.a]\npytest = ['test_a.py']\n")
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    # What the plugin does is not needed, only that it is there under its name.
    (tmp_path / "pytest_rerunfailures.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_rerunfailures")
    said = refused(capsys, lambda: run_gate(tmp_path))
    assert "pytest-rerunfailures is active" in said


@contextlib.contextmanager
def small_disk(folder, size):
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


def test_a_full_disk_is_named_and_is_no_regression(tmp_path, run_gate, capsys) -> None:
    (tmp_path / "gate.toml").write_text(f"{HEAD}[scenarios.a]\npytest = ['test_a.py']\n")
    fills = (
        "import pathlib\n"
        "def test_a(tmp_path):\n"
        "    with (tmp_path / 'ballast').open('wb', buffering=0) as file:\n"
        "        while True: file.write(b'x' * 512)\n"
    )
    (tmp_path / "test_a.py").write_text(fills)
    with small_disk(tmp_path / "small", "256k") as disk:
        code = run_gate(tmp_path, out=disk / "out").code
    out, err = capsys.readouterr()
    assert code in {4, 5}
    assert f"disk full: nothing can be written to {disk / 'out'}" in out
    assert "gate.json cannot be written: the disk is full" in err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_an_update_shows_what_changes_and_writes_when_told(
    tmp_path, run_gate, capsys, monkeypatch
) -> None:
    suite = f"{HEAD}[scenarios.a]\npytest = ['test_a.py']\ncount = 2\n"
    (tmp_path / "gate.toml").write_text(suite)
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    baseline = tmp_path / "baseline.toml"
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # nobody to ask
    ended = run_gate(tmp_path, "--update-baseline")
    assert ended.code == 1
    assert [one["measured"]["run"] for one in ended.gate["judged"]] == [1, 2]
    assert '+test = "test_a.py::test_a"' in capsys.readouterr().out
    assert not baseline.exists()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run_gate(tmp_path, "--update-baseline").code == 0
    assert baseline.read_text().count('result = "passed"') == 1
    baseline.unlink()
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert run_gate(tmp_path, "--update-baseline").code == 1
    assert not baseline.exists()
    assert run_gate(tmp_path, "--update-baseline", "--yes").code == 0
    assert baseline.exists()


def test_what_the_time_budget_leaves_no_time_for_is_not_run(tmp_path, run_gate) -> None:
    suite = f"{HEAD}budget_s = 1e-9\n[scenarios.a]\npytest = ['test_a.py']\n"
    (tmp_path / "gate.toml").write_text(suite)
    ended = run_gate(tmp_path)
    assert (ended.code, ended.statuses) == (5, {"a": "not run"})
    assert "1e-09 s were up" in ended.about("a")["because"]
