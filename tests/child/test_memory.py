"""Reading memory, bounding it and describing a failed request, without torch."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from harness.child import memory, memory_cap, oom_text, out_of_memory
from harness.child.memory_use import Sampler, Span
from harness.child.out_of_memory import Requests
from harness.child.recorder import Recorder
from harness.events import schema
from harness.events.schema import Event

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def recorder(tmp_path):
    return Recorder(str(tmp_path))


@pytest.fixture
def recorded(tmp_path):
    def read(kind=None):
        lines = []
        for path in sorted(tmp_path.glob("*.jsonl")):
            lines += path.read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=Event) for line in lines]
        return [event for event in events if kind is None or isinstance(event, kind)]

    return read


def in_a_process(program):
    """What a program says in a process of its own, where nobody else takes or frees memory."""
    setup = (
        "import sys, resource; sys.path.insert(0, '.')\n"
        "from harness.child import memory\n"
        "from harness.child.memory_cap import limit_data\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", setup + program], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_resident_set_grows_by_what_is_touched_and_its_peak_stays():
    out = in_a_process(
        "before = memory.of_cpu()\n"
        "held = bytearray(64 << 20)\n"
        "held[::4096] = b'x' * (16 << 10)\n"  # zeroed in place, so every page is touched
        "during = memory.of_cpu()\n"
        "del held\n"
        "after = memory.of_cpu()\n"
        "print(during.allocated - before.allocated, after.allocated - during.allocated)\n"
        "print(after.peak_allocated - during.allocated, before.total)"
    )
    grown, shrunk, peak, total = map(int, out)
    assert grown >= 60 * MIB
    assert shrunk <= -60 * MIB
    assert peak >= -4 * MIB
    assert total > 100 * MIB


def test_a_process_without_torch_has_only_its_processors_memory(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert [use.device for use in memory.uses()] == ["cpu"]
    assert memory.use_of("cuda:0") is None


def test_a_bounded_process_gets_a_memory_error_and_lives():
    out = in_a_process(
        "print(limit_data(256 << 20))\n"
        "try: bytearray(512 << 20)\n"
        "except MemoryError: print('refused')\n"
        "print(len(bytearray(64 << 20)))"
    )
    assert out == [str(256 * MIB), "refused", str(64 * MIB)]


def test_a_lower_bound_that_was_there_stays():
    out = in_a_process(
        "resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 300 << 20))\n"
        "print(limit_data(256 << 20), *resource.getrlimit(resource.RLIMIT_DATA))\n"
        "print(limit_data(100 << 20))"
    )
    assert out == [str(200 * MIB), str(200 * MIB), str(300 * MIB), str(100 * MIB)]


class FakeCuda:
    """Stands for ``torch.cuda`` with two GPUs of 40 and 8 GiB."""

    def __init__(self):
        self.fractions = {}
        self.device = 1
        self.used = {0: (3 * GIB, 4 * GIB), 1: (0, 0)}

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def current_device(self):
        return self.device

    def set_device(self, index):
        self.device = index

    def get_device_properties(self, index):
        return type("Properties", (), {"total_memory": (40, 8)[index] * GIB})

    def set_per_process_memory_fraction(self, fraction, index):
        self.fractions[index] = fraction
        self.device = index  # as torch leaves it

    def memory_stats_as_nested_dict(self, index):
        current, peak = self.used[index]
        both = {"all": {"current": current, "peak": peak}}
        return {"allocated_bytes": both, "reserved_bytes": both} if peak else {}


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", type("Torch", (), {"cuda": fake}))
    monkeypatch.setattr(memory, "_totals", {})
    memory.remember_totals(fake)
    return fake


def test_gpus_are_bounded_each_by_its_own_share_and_the_current_device_stays(cuda):
    assert memory_cap.limit_gpus(cuda, 20 * GIB) == {"cuda:0": 20 * GIB}
    assert cuda.fractions == {0: 0.5}
    assert cuda.device == 1


def test_what_the_allocators_statistics_say_of_the_gpus_that_were_used(cuda):
    (gpu,) = [use for use in memory.uses() if use.device != "cpu"]
    assert gpu == memory.Use("cuda:0", 3 * GIB, 3 * GIB, 4 * GIB, 4 * GIB, 40 * GIB)


def test_the_observer_records_what_the_allocator_tells_it(cuda, recorder, recorded):
    def ask():
        Requests(recorder).observe(0, 8 * GIB, 20 * GIB, 30 * GIB)

    ask()
    (event,) = recorded(schema.OutOfMemory)
    data = event.data
    assert (data.device, data.asked, data.free) == ("cuda:0", 8 * GIB, 30 * GIB)
    assert (data.total, data.cap) == (40 * GIB, 20 * GIB)
    assert (data.allocated, data.reserved) == (3 * GIB, 3 * GIB)
    assert (data.seen, data.doing, data.error) == ("allocator", "", None)
    assert event.where[0].function == "ask"


def test_an_unbounded_gpu_has_no_cap(cuda, recorder, recorded):
    Requests(recorder).observe(0, 8 * GIB, 40 * GIB, GIB)
    (event,) = recorded(schema.OutOfMemory)
    assert event.data.cap is None


def test_the_observer_raises_nothing_whatever_happens(cuda, recorder, monkeypatch):
    def broken(_index):
        raise RuntimeError("the allocator is in a bad way")

    monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", broken)
    assert Requests(recorder).observe(0, GIB, GIB, 0) is None
    assert recorder.lost == 1


def test_a_loop_of_failed_requests_is_thinned_out(cuda, recorder, recorded):
    requests = Requests(recorder)
    for _ in range(1000):
        requests.observe(0, GIB, 40 * GIB, 0)
    counts = [event.data.count for event in recorded(schema.OutOfMemory)]
    assert counts == [*range(1, 9), *(2**n for n in range(4, 10))]


def test_an_exception_is_recorded_once_with_the_size_and_what_it_came_from(recorder, recorded):
    requests = Requests(recorder)
    requests.cap = GIB
    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
    inner = RuntimeError(text)
    error = ValueError("the step failed")
    error.__cause__ = inner
    requests.failing(error)
    requests.failing(error)
    requests.failing(ValueError("no memory of it"))
    (event,) = recorded(schema.OutOfMemory)
    assert (event.data.device, event.data.asked, event.data.cap) == ("cpu", 99, GIB)
    assert event.data.seen == "error"
    assert event.data.error is not None


def test_an_exception_that_two_threads_raise_at_once_is_recorded_once(recorder, recorded):
    """As a future's is, by each thread that asks for it: both look before either has noted it."""
    both_here = threading.Barrier(2)

    class Noted(dict[str, object]):
        def get(self, key, default=None):
            found = super().get(key, default)
            if key == out_of_memory._NOTED:
                both_here.wait(60)
            return found

        def setdefault(self, key, default=None):
            if key == out_of_memory._NOTED:
                both_here.wait(60)
            return super().setdefault(key, default)

    class RaisedError(RuntimeError):
        __dict__ = Noted()

    requests = Requests(recorder)
    error = RaisedError("DefaultCPUAllocator: not enough memory")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(requests.failing, [error, error]))
    assert len(recorded(schema.OutOfMemory)) == 1
    assert recorder.lost == 0


def test_what_the_observer_saw_is_not_recorded_again_from_the_exception(recorder, recorded):
    requests = Requests(recorder)
    requests.observed = True
    requests.failing(type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."))
    assert recorded(schema.OutOfMemory) == []
    requests.failing(MemoryError())
    assert [event.data.device for event in recorded(schema.OutOfMemory)] == ["cpu"]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("you tried to allocate 536870912 bytes. Error code 12", 536870912),
        ("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has", 3 * GIB // 2),
        ("Tried to allocate 512.00 MiB.", 512 * MIB),
        ("out of memory", None),
    ],
)
def test_the_size_is_read_from_the_text(text, asked):
    assert oom_text.asked_of(text) == asked


def test_sampling_is_no_more_often_than_asked_for(recorder, recorded):
    sampler = Sampler(recorder, interval_s=3600)
    for point in ("step", "step", "dynamo_compile", "wrapper"):
        sampler.noted(point, "instant")
    assert [event.data.device for event in recorded(schema.Memory)] == ["cpu"]
    names = {"events.jsonl", f"steady-{os.getpid()}-000001.jsonl"}
    assert {path.name for path in Path(recorder.folder).iterdir()} == names


def test_a_phase_is_given_the_peak_that_rose_in_it(tmp_path, recorded):
    program = f"""
from harness.child.memory_use import Sampler
from harness.child.recorder import Recorder
recorder = Recorder({str(tmp_path)!r})
recorder.noted = Sampler(recorder).noted
recorder.local.phase = "warmup"
recorder.emit("phase", {{"name": "warmup"}}, edge="enter")
now = memory.of_cpu()
held = bytearray(now.peak_allocated - now.allocated + (64 << 20))
held[::4096] = b"x" * len(held[::4096])
del held
recorder.emit("phase", {{"name": "warmup"}}, edge="exit")
print(now.peak_allocated)
"""
    (peak,) = map(int, in_a_process(program))
    (event,) = recorded(schema.MemoryPeak)
    assert (event.data.scope, event.data.name, event.data.device) == ("phase", "warmup", "cpu")
    assert event.data.exact
    assert event.data.peak - peak >= 60 * MIB
    assert event.data.before <= peak


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        ((10, 25), (25, True)),  # it rose: that was in here
        ((25, 25), (9, False)),  # it did not: the most that was seen
        ((25, 12), (12, False)),  # the program reset it
        ((25, 7), (9, False)),  # and more was seen before that
    ],
)
def test_a_span_says_how_well_its_peak_is_known(peaks, expected):
    first, last = peaks
    span = Span(memory.Use("cuda:0", allocated=5, peak_allocated=first))
    span.see(memory.Use("cuda:0", allocated=9, peak_allocated=first))
    span.see(memory.Use("cuda:0", allocated=2, peak_allocated=last))
    data = span.data()
    assert (data["peak"], data["exact"]) == expected
    assert data["before"] == 5


def test_a_sampler_that_fails_costs_an_event_and_nothing_else(recorder, monkeypatch):
    def broken():
        raise OSError("no /proc")

    monkeypatch.setattr(memory, "uses", broken)
    Sampler(recorder).noted("step", "instant")
    assert recorder.lost == 1


def test_the_last_event_of_a_run_has_its_peaks(recorder, recorded):
    Sampler(recorder).record_peaks()
    (event,) = recorded(schema.MemoryPeak)
    assert event.data.scope == "program"
    assert event.data.peak >= memory.of_cpu().allocated // 2
    assert event.data.device == "cpu"
