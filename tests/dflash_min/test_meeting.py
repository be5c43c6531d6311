"""A meeting lets all go on or none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dflash_min.errors import Stopped
from dflash_min.meeting import Meeting


def test_nobody_goes_on_before_all_have_come():
    meeting, counts = Meeting(3), [0, 0, 0]

    def work(index):
        seen = []
        for _ in range(50):
            counts[index] += 1
            meeting.wait()
            seen.append(min(counts))
            meeting.wait()
        return seen

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, range(3))) == [list(range(1, 51))] * 3


def test_one_alone_meets_itself():
    meeting = Meeting(1)
    assert [meeting.wait() for _ in range(3)] == [None] * 3
    meeting.abort()
    with pytest.raises(Stopped):
        meeting.wait()


def waiting(meeting):
    """Wait on a thread; return it, and a list of how that ended."""
    ended = []

    def work():
        try:
            meeting.wait()
            ended.append("went on")
        except Stopped:
            ended.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    while not meeting._here:  # until it is there
        pass
    return thread, ended


def test_a_meeting_that_all_have_come_to_is_not_broken_off():
    meeting = Meeting(2)
    thread, ended = waiting(meeting)
    with meeting._changed:  # so that the other wakes after the end
        meeting.wait()
        meeting.abort()
    thread.join()
    assert ended == ["went on"]
    with pytest.raises(Stopped):
        meeting.wait()


def test_a_meeting_that_one_has_not_come_to_is_broken_off():
    meeting = Meeting(2)
    thread, ended = waiting(meeting)
    meeting.abort()
    thread.join()
    assert ended == ["stopped"]
