"""The pace that a time is measured at."""

import signal
import time

import pytest

from .pace import Pace


def test_what_a_slow_machine_adds_is_taken_off():
    pace = Pace()
    pace.looks = [90, 110]
    assert pace.even(1_000_200) == 1_000_000
    pace.looks = [140, 160]
    assert pace.even(1_500_300) == pytest.approx(1_000_000)


def test_a_pass_without_a_look_is_left_as_it_is():
    with Pace() as pace:
        pass
    pace.looks.clear()
    assert pace.even(1234) == 1234


def test_it_looks_while_the_work_runs_and_at_no_other_time():
    def work():
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass

    mine = signal.getsignal(signal.SIGPROF)
    pace = Pace()
    with pace:
        work()
    looks = len(pace.looks)
    assert looks >= 5
    assert all(look > 0 for look in pace.looks)
    work()
    assert len(pace.looks) == looks
    assert signal.getsignal(signal.SIGPROF) is mine
    with pace:
        pass
    assert len(pace.looks) < looks  # of this context alone
