"""The trainer as a command: it learns, repeats itself to the bit, and refuses what cannot run."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

import dflash_min
from dflash_min import environment, train
from dflash_min.replica import Replica
from dflash_min.step_report import StepReport

from .trainers import flags, small, small_dense, state, workers

ROOT = str(Path(dflash_min.__file__).parents[1])


def run_command(argv: list[str], cwd: Path, path: str = ROOT, *options: str):
    return subprocess.run(
        [sys.executable, *options, "-m", "dflash_min.train", *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.usefixtures("compiled_graphs")
def test_two_runs_of_three_drafters_end_in_the_same_bits():
    ends = []
    for _ in range(2):
        torch._dynamo.reset()
        trainer = small(threads=3, steps=3)
        before = state(trainer.replicas[0].drafter)
        trainer.run(lambda report: None)
        assert before != state(trainer.replicas[0].drafter)
        ends.append([state(replica.drafter) for replica in trainer.replicas])
    assert ends[0] == ends[1]
    assert ends[0][0] == ends[0][1] == ends[0][2]


def test_the_loss_falls_on_real_text_also_where_it_was_not_trained():
    trainer = small_dense(threads=2, steps=40, lr=5e-3, eval_batches=4, hidden=64, mlp=64)
    before = trainer.evaluator(0).loss
    losses = []
    summary = trainer.run(lambda report: losses.append(report.loss))
    assert len(losses) == 40
    # Untrained: no better than a guess among 256 bytes, log(256) = 5.5.
    assert losses[0] > 5.4
    assert sum(losses[-5:]) / 5 < losses[0] - 1.2
    assert summary.held_out_loss < before - 1.5


def test_padding_does_not_change_what_is_learned():
    losses = {}
    for shapes in ("varying", "buckets", "fixed"):
        losses[shapes] = []
        trainer = small_dense(threads=1, steps=3, seq_lens=(96, 112, 128), shapes=shapes)
        trainer.run(lambda report, kept=losses[shapes]: kept.append(report.loss))
    assert losses["fixed"] == pytest.approx(losses["varying"], rel=1e-5)
    assert losses["buckets"] == pytest.approx(losses["varying"], rel=1e-5)


def test_the_command_alone(tmp_path):
    done = run_command(flags(threads=3, steps=7), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained 7 steps in ")
    assert done.stdout.count("\n") == 1
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines] == [f"{n}/7" for n in range(1, 8)]
    assert all("loss" in line and "accept_len" in line and "tokens/s" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_thread_is_one_line_and_a_group(monkeypatch, capsys):
    error = RuntimeError("no such luck")

    def forward(self, batch):
        if batch.step == 1:
            raise error
        return self.forward_dense(batch)

    monkeypatch.setattr(Replica, "forward", forward)
    with pytest.raises(ExceptionGroup) as caught:
        train.main(flags(threads=1, warmup="none"))
    assert caught.value.exceptions == (error,)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "dflash_min.train: 1 thread failed: RuntimeError"
    assert workers() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup": "some"}, "'some'"),
        ({"layout": "5x3"}, "--layout"),
        ({"layout": "1+3", "threads": 2}, "--threads says 2, --layout 1+3 says 3"),
        ({"threads": 0}, "--threads must be at least 1"),
        ({"device": "auto", "drafters": "cuda:999"}, "--drafters names cuda:999, but"),
        ({"seq_lens": (3,)}, "a sequence of 3 tokens is shorter than a block of 4"),
        ({"backend": "bogus"}, "--backend bogus is none of "),
        ({"data": "empty.txt"}, "empty.txt: the file is empty"),
        ({"data": "binary.txt"}, "binary.txt: binary"),
        ({"data": "missing.txt"}, "missing.txt: No such file"),
        ({"data": "short.txt"}, "short.txt: 6 tokens of text, but a sequence takes 128"),
        ({"data": "rows.jsonl"}, "rows.jsonl:2: "),
        ({"data": "fits.txt", "eval_batches": 1}, "too little text to hold some out"),
    ],
)
def test_bad_input_is_one_line_code_2_and_leaves_nothing(
    settings, message, tmp_path, monkeypatch, capfd
):
    files = {
        "empty.txt": b"",
        "binary.txt": b"\0\1\2" * 100,
        "short.txt": b"short",
        "rows.jsonl": b'{"text": "good"}\n{"text": \n',
        "fits.txt": b"x" * 130,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        train.main(flags(**settings))
    out, err = capfd.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("dflash_min.train: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == set(files)
    assert workers() == []


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0a0+git1", "unknown"])
def test_another_torch_is_refused_before_it_is_imported(version, tmp_path):
    info = tmp_path / "path" / f"torch-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (tmp_path / "path" / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    path = os.pathsep.join([str(tmp_path / "path"), ROOT])
    done = run_command([], tmp_path, path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"dflash_min.train: error: torch {version} is not supported; "
        f"2.11 to 2.15 is ({sys.executable})\n"
    )


def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path):
    info = tmp_path / "path" / "torch-2.13.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    (tmp_path / "path" / "torch.py").write_text("import signal; signal.raise_signal(2)\n")
    done = run_command([], tmp_path, os.pathsep.join([str(tmp_path / "path"), ROOT]))
    assert done.returncode == -signal.SIGINT
    assert done.stdout == ""
    assert done.stderr == (
        "dflash_min.train: stopped by SIGINT before the first step; nothing is saved\n"
    )


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.3"])
def test_supported_torch(version, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    environment.check_torch()


def test_no_torch_is_one_line(monkeypatch, capfd):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    with pytest.raises(SystemExit) as stop:
        train.main([])
    assert stop.value.code == 2
    assert capfd.readouterr().err == (
        f"dflash_min.train: error: {sys.executable} has no torch; 2.11 to 2.15 is needed\n"
    )


def report(step: int, loss: float) -> StepReport:
    return StepReport(
        step,
        loss=loss,
        accept_len=1.5,
        tokens=100,
        seconds=0.5,
        lr=1e-3,
        accuracy=0.1,
        slot_accuracy=(0.1,),
    )


def test_on_a_terminal_one_line_is_rewritten(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = train.Progress(3)
    for step in range(3):
        progress(report(step, 5.0 - step))
    progress.end()
    shown = terminal.getvalue()
    assert shown.count("\r") == 3
    assert shown.count("\n") == 1
    assert "step 3/3  loss 3.0000  accept_len 1.50  " in shown


def test_a_terminal_that_is_gone_takes_no_training_along(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    for terminal in (True, False):
        gone = Gone()
        gone.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", gone)
        progress = train.Progress(1)
        progress(report(0, 5.0))
        progress.end()
        monkeypatch.undo()


def test_elsewhere_some_steps_are_lines_and_the_last_always(capsys):
    progress = train.Progress(25)
    for step in range(25):
        progress(report(step, 5.0))
    progress.end()
    shown = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["4/25", "8/25", "12/25", "16/25", "20/25", "24/25", "25/25"]
