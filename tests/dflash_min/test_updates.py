"""Updates of the replicas' weights, which a stop holds between two steps."""

from __future__ import annotations

import threading

import pytest

from dflash_min.errors import NotFiniteError, Stopped
from dflash_min.updates import Updates


def test_updates_are_held_between_two_steps_only():
    updates = Updates(replicas=2, done=4)
    with updates.update(0):
        assert updates.hold(timeout=0) is None
    assert updates.hold(timeout=0) is None  # the other replica is a step behind
    with updates.update(1):
        pass
    with updates.update(1):
        pass
    assert updates.hold(timeout=0) is None
    with updates.update(0):
        pass
    assert updates.hold(timeout=0) == 6
    with pytest.raises(Stopped), updates.update(0):
        pytest.fail("a weight could have changed")
    assert updates.hold(timeout=0) == 6


def test_a_step_is_finished_when_all_replicas_have_finished_it():
    updates = Updates(replicas=2, done=4)
    assert updates.finished(3)
    for rank in range(2):
        assert not updates.finished(4)
        with updates.update(rank):
            assert not updates.finished(4)
    assert updates.finished(4)
    assert not updates.finished(5)


def test_a_hold_waits_for_updates_that_have_begun():
    updates = Updates(replicas=2, done=0)
    found = []
    waiter = threading.Thread(target=lambda: found.append(updates.hold(timeout=60)))
    with updates.update(0):
        waiter.start()
        with updates.update(1):
            pass
        assert found == []
    waiter.join()
    assert found == [1]


@pytest.mark.parametrize(("error", "found"), [(NotFiniteError, 3), (MemoryError, None)])
def test_an_error_in_an_update_leaves_a_whole_state_only_if_nothing_was_changed(error, found):
    updates = Updates(replicas=2, done=3)
    with pytest.raises(error), updates.update(1):
        raise error
    # At once, though there is time: no replica will make up for it.
    assert updates.hold(timeout=60) == found
