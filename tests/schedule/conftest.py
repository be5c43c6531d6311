"""Fixtures of the tests with real threads."""

import pytest

from harness.child.recorder import Recorder
from harness.child.schedule import controller as controller_module


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path))


class Clock:
    """Time that passes only when the controller looks at it."""

    def __init__(self, *, busy):
        self.now = 0.0
        self.busy = busy

    def monotonic(self):
        self.now += 0.05
        return self.now

    def process_time(self):
        return self.now if self.busy else 0.0


@pytest.fixture
def clock(monkeypatch):
    def set_clock(*, busy):
        made = Clock(busy=busy)
        monkeypatch.setattr(controller_module, "time", made)
        monkeypatch.setattr(controller_module, "helpers_cpu_s", lambda: None)
        return made

    return set_clock
