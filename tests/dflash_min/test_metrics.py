"""The lines of a run's metrics: what is dropped when the run goes on, and what is damaged."""

from __future__ import annotations

import json

import pytest

from dflash_min import train
from dflash_min.config import SaveConfig
from dflash_min.saving import metrics

from .saved_runs import SETTINGS, stopping_after
from .trainers import flags, small_dense

pytestmark = pytest.mark.usefixtures("threads_end")


def test_a_damaged_line_of_metrics_is_named(tmp_path, capsys):
    stopping_after(small_dense(SaveConfig(out=tmp_path), **SETTINGS), 3)
    path = tmp_path / metrics.FILE
    first, _, third = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0" * 20, b"{}", b'{"step": 2, "kind": "\xff"}'):
        path.write_bytes(first + damaged + b"\n" + third)
        before = path.read_bytes()
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            train.main([*flags(**SETTINGS, warmup="none", out=tmp_path), "--resume"])
        err = capsys.readouterr().err
        assert stop.value.code == 2
        assert err.startswith(f"dflash_min.train: error: {path}:2: a damaged line (")
        assert err.count("\n") == 1
        assert path.read_bytes() == before


def test_lines_after_the_checkpoint_and_a_cut_one_are_dropped(tmp_path):
    path = tmp_path / metrics.FILE
    written = metrics.Metrics(path)
    for step in (1, 2, 3):
        written.write(step, "train", {"loss": float("nan"), "slot_accuracy": (0.5, float("nan"))})
    written.write(2, "eval", {"loss": 1.5})
    written.close()
    path.write_bytes(path.read_bytes() + b'{"step":3,"ki')
    assert [line["step"] for line in metrics.read(path)] == [1, 2, 3, 2]
    metrics.rewind(path, 2)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "kind": "train", "loss": None, "slot_accuracy": [0.5, None]},
        {"step": 2, "kind": "train", "loss": None, "slot_accuracy": [0.5, None]},
        {"step": 2, "kind": "eval", "loss": 1.5},
    ]
