"""A night run in little: what is written and kept in memory stays bounded, in child and parent."""

import gc
import importlib.util
import json
import tracemalloc
from pathlib import Path

import pytest

from harness.child import caches, codes
from harness.child.recorder import Recorder
from harness.live import Live
from harness.supervise.progress import Counters

MEGABYTE = 1 << 20
_path = Path(__file__).parent / "bench" / "night.py"
_spec = importlib.util.spec_from_file_location("night", _path)
night = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(night)


def in_use():
    """Bytes that Python holds, without what the next collection of garbage will take."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture(scope="module")
def measured():
    """A fortieth of a night: 21,600 steps, 172,800 calls, 2,500 threads and 500 errors."""
    return night.measured(0.025, max_events_mb=1)


@pytest.mark.slow
def test_the_program_grows_no_further(measured):
    resident = [row["resident"] for row in measured["rounds"]]
    # The first rounds reach what allocators and caches settle at.
    assert resident[-1] - resident[2] < 2 * MEGABYTE, resident


@pytest.mark.slow
def test_steps_stay_within_what_was_asked_for(measured):
    steady = [row["steady"] for row in measured["rounds"]]
    assert steady[0] > 0
    assert max(steady) <= MEGABYTE
    assert steady[-1] <= steady[3] + MEGABYTE // 8


@pytest.mark.slow
def test_what_is_kept_is_bounded_by_what_is_new(measured):
    points = measured["points"]
    # Half of the threads call compiled code, which is worth a line; the others' starts and ends
    # stop at the bound.
    assert points["thread_start"] < 2500
    assert points["thread_start"] == points["thread_end"]
    assert points["thread_error"] == points["future_read"] == 256  # of 500
    assert points["dynamo_compile"] <= 2 * night.WORKERS
    assert points["left_out"] > 0


def test_code_that_comes_and_goes_leaves_nothing_behind(tmp_path):
    """Programs that make functions all night: what describes them goes when they go."""
    gc.collect()  # what other tests have left would go in the meantime
    before = len(codes._known), len(caches._compiled)
    for number in range(3000):
        space = {}
        exec(f"def f{number}(x): return x", space)
        function = space.pop(f"f{number}")
        described = codes.describe(function.__code__)
        caches.remember(function.__code__, described, f"{number}/0")
        assert described["name"] == f"f{number}"
        del function
    assert (len(codes._known), len(caches._compiled)) == before


def test_threads_that_come_and_go_leave_nothing_in_the_recorder(tmp_path):
    import threading

    recorder = Recorder(str(tmp_path))

    def work():
        recorder.emit_counted("fx_trace", "T", {"tracer": "T"}, edge="enter")

    def churn(count):
        for _ in range(count):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    churn(2500)  # past what is written of each
    tracemalloc.start()
    churn(200)
    first = in_use()
    churn(2000)
    second = in_use()
    tracemalloc.stop()
    assert second - first < 2000 * 8, (first, second)  # not even a pointer a thread


def test_the_parent_keeps_counts_and_no_events(tmp_path):
    """A recording that grows a hundredfold under the eyes of the progress line and the follower."""
    event = {"t_ns": 1, "seq": 1, "pid": 1, "tid": 1, "thread": "t", "edge": "enter"}
    lines = b"".join(
        json.dumps({"point": point, **event, "data": {"name": "x" * 500}}).encode() + b"\n"
        for point in ("thread_start", "phase", "lock_wait")
    )
    log = (tmp_path / "events.jsonl").open("ab", buffering=0)
    counters, follower = Counters(tmp_path), Live("harness.watch", tmp_path)

    def grow(times):
        for _ in range(times):
            log.write(lines * 100)
            counters.update()
            follower._look_at = 0.0
            assert follower.tick() is None

    grow(3)
    tracemalloc.start()
    first = in_use()
    grow(100)
    second = in_use()
    tracemalloc.stop()
    log.close()
    assert (tmp_path / "events.jsonl").stat().st_size > 15 * MEGABYTE
    assert counters.threads == 103 * 100
    assert second - first < MEGABYTE // 8
