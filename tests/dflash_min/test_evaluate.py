"""Held-out figures in training: what they are, and that training does not notice."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from dflash_min.config import SaveConfig, TrainConfig
from dflash_min.errors import UsageError
from dflash_min.evaluation.evaluate import Evaluation, Evaluator, summarised
from dflash_min.gradients import Average
from dflash_min.loss import LossSums
from dflash_min.resolve import resolve
from dflash_min.saving import metrics
from dflash_min.status_line import StatusLine
from dflash_min.train import Progress

from ..bench.stepping.compile_counts import compiles
from .failures import BrokenError
from .saved_runs import everything, lines
from .trainers import SIZES, ignore, small, small_dense

if TYPE_CHECKING:
    from pathlib import Path

    from dflash_min.trainer import Trainer


def saving(out: Path, *, resume: bool = False, **settings) -> Trainer:
    """Build a small uncompiled trainer with a run folder."""
    return small_dense(SaveConfig(out=out, resume=resume), **settings)


def test_training_does_not_notice_an_evaluation():
    """No bit of any replica or optimiser differs."""
    ends = []
    for every in (0, 1):
        trainer = small_dense(threads=3, steps=3, eval_batches=1, eval_every=every)
        evaluations = []
        trainer.run(ignore, evaluations.append)
        assert [evaluation.step for evaluation in evaluations] == [1, 2, 3][: 3 * every]
        ends.append(everything(trainer))
    assert ends[0] == ends[1]


@pytest.mark.usefixtures("compiled_graphs")
def test_an_evaluation_compiles_nothing():
    trainer = small(threads=2, steps=2, eval_batches=1, eval_every=1)
    with compiles() as counts:
        trainer.run(ignore)
    assert set(counts) == {threading.main_thread().name}


def test_global_random_state_is_neither_read_nor_written():
    ends = []
    for seed in (1, 2):
        trainer = small_dense(threads=2, steps=2, eval_batches=2, eval_every=1)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        evaluations = []
        trainer.run(ignore, evaluations.append)
        assert torch.get_rng_state().equal(before)
        ends.append((evaluations, everything(trainer)))
    assert ends[0] == ends[1]


def test_figures_are_those_of_the_weights_after_that_step():
    """Each evaluation is what a run that ends there finds, though the others train on meanwhile."""
    evaluations: list[Evaluation] = []
    settings = {"threads": 3, "eval_batches": 2, "lr": 0.01, "lr_warmup": 0.0}
    small_dense(**settings, steps=5, eval_every=1).run(ignore, evaluations.append)
    trainer = small_dense(**settings, steps=5)
    wanted = []

    def look(report) -> None:
        if report.step == 2:
            wanted.append(trainer.evaluator(3))

    trainer.run(look)
    assert evaluations[2] == wanted[0]
    assert len({evaluation.loss for evaluation in evaluations}) == 5
    assert evaluations[-1] == trainer.evaluator(5)


def test_weights_do_not_change_while_they_are_evaluated(monkeypatch):
    """The evaluation is held until the other drafter has come as far as it can without this one."""
    trainer = small_dense(threads=2, steps=3, eval_batches=1, eval_every=1)
    gather, sums = Average.gather, Evaluator.sums
    arrived = 0
    changed = threading.Condition()
    seen = []

    def announced(average, rank, *rest):
        nonlocal arrived
        with changed:
            arrived += rank
            changed.notify_all()
        return gather(average, rank, *rest)

    def held(evaluator):
        waited_for = min(trainer.finished + 1, 3)
        with changed:
            assert changed.wait_for(lambda: arrived == waited_for, timeout=60)
        before = everything(trainer)
        found = sums(evaluator)
        seen.append(before == everything(trainer))
        return found

    monkeypatch.setattr(Average, "gather", announced)
    monkeypatch.setattr(Evaluator, "sums", held)
    trainer.run(ignore)
    assert seen == [True, True, True]


@pytest.mark.parametrize(
    ("steps", "every", "evaluated"), [(3, 2, [2, 3]), (4, 2, [2, 4]), (3, 0, [3])]
)
def test_lines_of_evaluations_stand_among_those_of_steps(tmp_path, steps, every, evaluated):
    saving(tmp_path / "run", threads=1, steps=steps, eval_batches=1, eval_every=every).run(ignore)
    lines = metrics.read(tmp_path / "run" / metrics.FILE)
    wanted = []
    for step in range(1, steps + 1):
        wanted.append((step, "train"))
        if step in evaluated:
            wanted.append((step, "eval"))
    assert [(line["step"], line["kind"]) for line in lines] == wanted
    for line in lines:
        if line["kind"] == "eval":
            assert set(line) == {"step", "kind", "loss", "accuracy", "accept_len", "slot_accuracy"}
            assert len(line["slot_accuracy"]) == SIZES["block_size"] - 1
            assert line["loss"] > 0
            assert 1 <= line["accept_len"] <= SIZES["block_size"]


def test_the_last_step_is_evaluated_once(monkeypatch):
    counts = []
    sums = Evaluator.sums

    def counted(evaluator):
        counts.append(threading.current_thread().name)
        return sums(evaluator)

    monkeypatch.setattr(Evaluator, "sums", counted)
    summary = small_dense(threads=1, steps=4, eval_batches=1, eval_every=2).run(ignore)
    assert counts == ["drafter-0", "drafter-0"]
    assert summary.held_out_loss is not None


def test_a_finished_run_that_is_resumed_is_not_recorded_twice(tmp_path):
    out, settings = tmp_path / "run", {"threads": 1, "steps": 2, "eval_batches": 1}
    first = saving(out, **settings).run(ignore)
    before = (out / metrics.FILE).read_bytes()
    again = saving(out, resume=True, **settings).run(ignore)
    assert (out / metrics.FILE).read_bytes() == before
    assert again.steps == 0
    assert again.held_out_loss == first.held_out_loss
    # Killed after the last checkpoint and before the evaluation: that is made up for.
    (out / metrics.FILE).write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    saving(out, resume=True, **settings).run(ignore)
    assert (out / metrics.FILE).read_bytes() == before


@pytest.mark.parametrize("terminal", [False, True])
def test_an_evaluation_is_a_line_among_the_steps(terminal, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    evaluation = Evaluation(1, 2.5, 0.5, 1.25, (0.5,))
    Progress(2).held_out(evaluation)
    assert stream.getvalue() == ("\r{}\x1b[K\n" if terminal else "{}\n").format(evaluation.line())


def test_an_evaluation_after_the_last_step_leaves_no_empty_line(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = StatusLine()
    line.update("step 2/2", due=True)
    line.add("held out")
    line.end()
    assert terminal.getvalue() == "\rstep 2/2\x1b[K\rheld out\x1b[K\n"
    line.update("step 3/3", due=True)
    line.end()
    assert terminal.getvalue().endswith("\n\rstep 3/3\x1b[K\n")


@pytest.mark.parametrize(("every", "threads"), [(0, []), (2, ["MainThread"])])
def test_what_is_called_in_training_has_been_called_before_threads_start(every, threads):
    trainer = small_dense(threads=1, steps=1, eval_batches=3, eval_every=every)
    replica, names = trainer.replicas[0], []
    dense = replica.forward_dense

    def named(batch):
        names.append(threading.current_thread().name)
        return dense(batch)

    replica.forward_dense = named
    trainer.run(lambda _: names.append("step"))
    assert names == [*threads, "step", *["MainThread"] * 3]


def test_means_are_made_of_sums_over_batches():
    sums = LossSums(
        weighted_sum=torch.tensor(6.0),
        weight_sum=torch.tensor(4.0),
        slot_correct=torch.tensor([0, 3, 1, 0]),
        slot_scored=torch.tensor([0, 4, 4, 0]),
        accepted=torch.tensor(5),
        blocks=torch.tensor(4),
    )
    found = summarised(9, sums)
    assert (found.step, found.loss, found.accuracy, found.accept_len) == (9, 1.5, 0.5, 2.25)
    assert found.slot_accuracy[:2] == (0.75, 0.25)
    assert math.isnan(found.slot_accuracy[2])
    assert "step" not in found.values()
    assert found.line() == (
        "held out after step 9: loss 1.5000, accept_len 2.25, accuracy 0.500; by slot 0.75 0.25 -"
    )


def test_a_figure_that_does_not_exist_is_null_in_the_file(tmp_path):
    nan = dataclasses.replace(
        Evaluation(1, 1.0, math.nan, 1.0, (math.nan, 0.5)), accept_len=math.nan
    )
    file = metrics.Metrics(tmp_path / "m")
    file.write(nan.step, "eval", nan.values())
    file.close()
    assert json.loads((tmp_path / "m").read_text()) == {
        "step": 1,
        "kind": "eval",
        "loss": 1.0,
        "accuracy": None,
        "accept_len": None,
        "slot_accuracy": [None, 0.5],
    }


def test_how_often_needs_how_much():
    with pytest.raises(UsageError, match="--eval-every 5 needs --eval-batches"):
        resolve(TrainConfig(eval_every=5), 0)
    with pytest.raises(UsageError, match="--eval-every must be at least 0, got -1"):
        resolve(TrainConfig(eval_every=-1, eval_batches=1), 0)


def test_an_evaluation_that_a_stop_broke_off_is_made_up_for(tmp_path):
    whole = saving(tmp_path / "whole", eval_batches=1, eval_every=2, steps=4)
    whole.run(ignore)

    def stopped():
        raise BrokenError

    broken = saving(tmp_path / "broken", eval_batches=1, eval_every=2, steps=4)
    broken.evaluator.sums = stopped
    with pytest.raises(ExceptionGroup):
        broken.run(ignore)
    assert [line["kind"] for line in lines(tmp_path / "broken")] == ["train", "train"]
    saving(tmp_path / "broken", resume=True, eval_batches=1, eval_every=2, steps=4).run(ignore)
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
