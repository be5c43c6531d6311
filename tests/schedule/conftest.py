"""Fixtures of the tests with real threads."""

import math
import threading

import pytest

from harness.child.recorder import Recorder
from harness.child.schedule import controller as controller_module


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path))


class Clock:
    """Time that passes only when the controller looks at it, and stands still from ``until`` on."""

    def __init__(self, *, busy, until=math.inf):
        self.now = 0.0
        self.busy = busy
        self.until = until
        self.stopped = threading.Event()
        self.looks = 0

    def monotonic(self):
        self.looks += 1
        if self.now < self.until:
            self.now += 0.05
        else:
            self.stopped.set()
        return self.now

    def process_time(self):
        return self.now if self.busy else 0.0


@pytest.fixture
def clock(monkeypatch):
    def set_clock(**settings):
        made = Clock(**settings)
        monkeypatch.setattr(controller_module, "time", made)
        monkeypatch.setattr(controller_module, "helpers_cpu_s", lambda: None)
        return made

    return set_clock
