"""What a run tells of its steps: reports, their figures, and the observer."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from dflash_min import observe

from .trainers import ignore, small_dense, state

pytestmark = pytest.mark.usefixtures("threads_end")


def test_the_observer_sees_phases_on_the_main_thread_and_steps_on_the_drafters():
    seen = []

    class Recorder:
        def phase(self, name):
            seen.append((name, threading.current_thread().name))
            return nullcontext()

        def step(self, step, tokens, seconds):
            assert seconds > 0
            seen.append((threading.current_thread().name, step, tokens))

        def waiting(self, what):
            return nullcontext()

    observe.set_observer(Recorder())
    try:
        small_dense(threads=2, steps=2, batch_size=2, eval_batches=1).run(ignore)
    finally:
        observe.set_observer(None)
    main = threading.current_thread().name
    assert (seen[0], seen[-1]) == (("train", main), ("evaluate", main))
    assert sorted(seen[1:-1]) == [
        (f"drafter-{rank}", step, tokens)
        for rank in (0, 1)
        for step, tokens in ((0, 192), (1, 256))
    ]


def test_reports_are_sums_over_the_drafters():
    reports = []
    summary = small_dense(threads=2, steps=3).run(reports.append)
    assert [(report.step, report.tokens) for report in reports] == [(0, 192), (1, 256), (2, 192)]
    assert all(report.loss > 0 and report.accept_len >= 1 for report in reports)
    assert (summary.steps, summary.tokens) == (3, 640)
    assert (summary.first_loss, summary.loss) == (reports[0].loss, reports[-1].loss)
    assert summary.held_out_loss is None


def test_a_report_has_the_figures_of_the_step_over_all_drafters():
    trainer = small_dense(threads=2, steps=2, batch_size=2, lr_warmup=0.5)
    kept = [[], []]
    for replica, sums in zip(trainer.replicas, kept, strict=True):

        def forward(batch, sums=sums, inner=replica.forward):
            sums.append(inner(batch))
            return sums[-1]

        replica.forward = forward
    reports = []
    trainer.run(reports.append)
    for step, report in enumerate(reports):
        total = kept[0][step].detached() + kept[1][step].detached()
        assert report.loss == pytest.approx(float(total.loss))
        assert report.accept_len == pytest.approx(float(total.accept_len))
        assert report.accuracy == pytest.approx(float(total.accuracy))
        assert report.slot_accuracy == pytest.approx(total.slot_accuracy[1:].tolist())
        assert report.lr == 6e-4
        assert report.values().keys() == {
            "loss",
            "accept_len",
            "accuracy",
            "slot_accuracy",
            "lr",
            "tokens",
            "seconds",
        }


def test_weights_stay_as_the_step_left_them_while_it_is_reported():
    """All other drafters have begun the next step when the weights are looked at again."""
    trainer = small_dense(threads=3, steps=3)
    begun = threading.Semaphore(0)
    for replica in trainer.replicas[1:]:

        def forward(batch, inner=replica.forward):
            sums = inner(batch)
            begun.release()
            return sums

        replica.forward = forward

    def report(step):
        before = [state(replica.drafter) for replica in trainer.replicas]
        if step.step < 2:
            for _ in range(4 if step.step == 0 else 2):
                assert begun.acquire(timeout=60)
        assert [state(replica.drafter) for replica in trainer.replicas] == before

    assert trainer.run(report).steps == 3
