"""Targets and drafters that wait for each other: how far targets go ahead, and how waits end."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest

from dflash_min import observe
from dflash_min.dealing import made_by, maker
from dflash_min.updates import Updates

from .failures import BrokenError
from .trainers import ignore, others_end, small_dense

pytestmark = pytest.mark.usefixtures("threads_end")


def most_begun(resolved, target, step, *, kept):
    """How many batches a target can have begun while all drafters are in a step.

    All those of this step and before, as many more as its queues have places, and the one in its
    hand. A batch in work keeps its place, unless it is the only one there or was released.
    """
    queued: Counter[int] = Counter()
    numbers = made_by(resolved, target, 0)
    for count, number in enumerate(numbers, 1):
        of_step, rank, _ = resolved.batch_place(number)
        if of_step > step:
            queued[rank] += 1
            mine = maker(resolved, resolved.batch_number(step, rank, 0)) == target
            if queued[rank] > max(resolved.queue_depth - (kept and mine), 1):
                return count
    return len(numbers)


@pytest.mark.parametrize(("layout", "depth"), [("5+3", 2), ("5+3", 1), ("2+2", 3)])
def test_targets_go_on_until_their_queues_are_full_and_no_further(layout, depth):
    trainer = small_dense(layout=layout, queue_depth=depth, steps=16)
    resolved, features = trainer.resolved, trainer.targets[0].features
    names = [f"target-{i}" for i in range(len(resolved.layout.targets))]
    begun, changed, ahead = Counter(), threading.Condition(), []
    left = 0  # drafters that were let out of each step, all steps together

    def bounds(step, *, kept):
        return {name: most_begun(resolved, i, step, kept=kept) for i, name in enumerate(names)}

    def counted(ids):
        name = threading.current_thread().name
        with changed:
            begun[name] += 1
            step = left // len(trainer.replicas)
            if step < resolved.steps and begun[name] > bounds(step, kept=False)[name]:
                ahead.append((name, step))
            changed.notify_all()
        return features(ids)

    def held(batch, inner):
        nonlocal left
        with changed:
            full = bounds(batch.step, kept=True)
            # Or more: a drafter that was let out before this one has made room since.
            assert changed.wait_for(
                lambda: ahead or all(begun[name] >= least for name, least in full.items()), 60
            ), begun
            left += 1
        return inner(batch)

    trainer.targets[0].features = counted  # one target, on one device
    for replica in trainer.replicas:
        replica.forward = lambda batch, inner=replica.forward: held(batch, inner)
    assert trainer.run(ignore).steps == 16
    assert ahead == []
    assert sum(bounds(0, kept=False).values()) < sum(begun.values())


class Looking:
    """An observer that knows which thread waits for what now."""

    def __init__(self):
        self._now, self._changed = {}, threading.Condition()

    @contextmanager
    def phase(self, name):
        yield

    def step(self, step, tokens, seconds):
        pass

    @contextmanager
    def waiting(self, what):
        name = threading.current_thread().name
        with self._changed:
            self._now[name] = what
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._now[name]

    def until(self, expected):
        """Wait until exactly these threads wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._now == expected, 60), self._now


@pytest.fixture
def looking():
    observer = Looking()
    observe.set_observer(observer)
    yield observer
    observe.set_observer(None)


# What all others come to wait for while one thread is held in its first batch.
BEHIND = {
    "target-0": {
        **{f"target-{i}": "room" for i in range(1, 5)},
        "drafter-0": "batch",
        "drafter-1": "drafters",
        "drafter-2": "drafters",
    },
    "drafter-1": {
        **{f"target-{i}": "room" for i in range(5)},
        "drafter-0": "drafters",
        "drafter-2": "drafters",
    },
}


def holding(trainer, name, act):
    """Let a thread of a trainer call `act` in its first batch."""
    role, _, index = name.partition("-")
    owner, of = {
        "target": (trainer.targets[int(index)], "features"),
        "drafter": (trainer.replicas[int(index)], "forward"),
    }[role]
    inner, first = getattr(owner, of), threading.Lock()

    def held(argument):
        # All targets share one here.
        if threading.current_thread().name == name and first.acquire(blocking=False):
            act()
        return inner(argument)

    setattr(owner, of, held)


def die(trainer):
    raise BrokenError


def stop(trainer):
    trainer.stop()


def interrupt(trainer):
    """And wait until the main thread has taken it: steps would be finished until then."""
    with pytest.MonkeyPatch.context() as patch:
        hold, held = Updates.hold, threading.Event()
        patch.setattr(Updates, "hold", lambda self, timeout: (hold(self, timeout), held.set())[0])
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert held.wait(60)


ENDS = {
    die: (pytest.raises(ExceptionGroup), 0),
    stop: (nullcontext(), 1),
    interrupt: (pytest.raises(KeyboardInterrupt), 0),
}
"""What comes out of `run`, and how many steps are finished then."""


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("action", ENDS, ids=lambda action: action.__name__)
def test_every_wait_ends_when_the_thread_that_all_wait_for_dies_or_the_run_is_stopped(
    action, name, looking
):
    trainer = small_dense(layout="5+3", steps=10_000)
    trainer.grace_s = 60.0  # what needs it takes most of it
    acted = []

    def act():
        looking.until(BEHIND[name])
        acted.append(time.monotonic())
        action(trainer)

    holding(trainer, name, act)
    ends, finished = ENDS[action]
    with ends as caught:
        trainer.run(ignore)
    assert time.monotonic() - acted[0] < trainer.grace_s / 2
    assert trainer.left_behind == []
    assert trainer.finished == finished
    if action is die:
        (error,) = caught.value.exceptions
        assert isinstance(error, BrokenError)
        assert error.__notes__ == [f"raised in thread {name}"]


@pytest.mark.parametrize("name", BEHIND)
def test_only_a_stuck_thread_is_left_behind_by_a_stop(name, looking):
    trainer = small_dense(layout="5+3", steps=10_000)
    trainer.grace_s = 0.2
    goes_on = threading.Event()

    def stuck():
        looking.until(BEHIND[name])
        trainer.stop()
        assert goes_on.wait(60)

    holding(trainer, name, stuck)
    trainer.run(ignore)
    others_end(name)
    assert trainer.left_behind == [name]
    goes_on.set()
    others_end()
    assert trainer.finished == 0
