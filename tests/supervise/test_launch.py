"""What a program is started with: its environment and folders."""

import signal
import stat
import textwrap

import pytest

from harness.diagnosis.build import diagnose
from harness.events.files import TORCH_TRACE
from harness.exits import ExitCode
from harness.flow import tell_of_traces
from harness.spec import WatchOptions
from harness.supervise.process import supervise

# What torch does once it is told where (``torch/_logging/_internal.py``).
WRITES = "import os; open(os.environ['TORCH_TRACE'] + '/log', 'w').close()"


@pytest.mark.parametrize("before", [None, ""])
def test_torchs_logs_are_for_their_owner_only(supervised, monkeypatch, before) -> None:
    monkeypatch.delenv("TORCH_TRACE", raising=False)
    if before is not None:
        monkeypatch.setenv("TORCH_TRACE", before)
    ended, folder = supervised(WRITES, torch_trace=True)
    assert ended.exit_code == 0
    assert (folder / TORCH_TRACE / "log").exists()
    assert stat.S_IMODE((folder / TORCH_TRACE).stat().st_mode) == 0o700


def test_a_program_without_torch_leaves_no_folder_for_its_logs(supervised) -> None:
    _, folder = supervised("pass", torch_trace=True)
    assert not (folder / TORCH_TRACE).exists()


def test_the_users_own_folder_stays_and_is_told(supervised, monkeypatch, tmp_path, capsys) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path / "mine"))
    _, folder = supervised(WRITES, torch_trace=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["log"]
    assert not (folder / TORCH_TRACE).exists()
    tell_of_traces("harness.watch", WatchOptions())
    assert capsys.readouterr().err == ""
    tell_of_traces("harness.watch", WatchOptions(torch_trace=True))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("harness.watch: TORCH_TRACE is set: ")
    assert str(tmp_path / "mine") in line


def test_ctrl_c_before_the_watch_is_in_is_no_failure(prepare, monkeypatch, tmp_path) -> None:
    """The first ``json`` on the path, which the watch imports, has the supervisor interrupted."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "json.py").write_text(
        textwrap.dedent("""
            import os, signal, time
            os.kill(os.getppid(), signal.SIGINT)
            while True: time.sleep(0.01)  # between two of them Python looks for signals
        """)
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    launch = prepare("print('it ran')")
    ended = supervise(launch)
    assert (ended.signal, ended.interrupted) == (signal.SIGINT, True)
    assert ended.stderr_tail == ""
    report = diagnose(launch.folder)
    assert (report.verdict, report.exit_code) == ("incomplete", ExitCode.INTERRUPTED)
    assert "interrupted from the keyboard before anything was recorded" in report.headline
