"""``trace.json``: what is in the recording is in the picture, and every track can be drawn."""

import gc
import itertools
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.child.recorder import Recorder
from harness.events import program, schema
from harness.events.values import Code, ErrorLink, Frame
from harness.render.perfetto import TRACE, write_trace
from harness.timeline.recording import Recording

from .trace_checks import load

RECORDINGS = Path(__file__).parents[1] / "recordings"
BLOCK = Code(1, "block", "/home/ada/p.py", 3)
HEADER = {
    "schema": 1,
    "harness": "0.1.0",
    **dict.fromkeys(("python", "torch", "triton", "cuda", "platform"), ""),
    "cpus": 2,
    "argv": ("python", "/data/ada/train.py", "--steps", "3"),
    "started_unix": 0.0,
    "compile_detail": True,
    "home": "/data/ada",
}


class Made:
    """A recording of events given, without files."""

    def __init__(self, folder, events=(), steady=()):
        self.folder, self._events, self._steady = folder, events, steady

    def events(self):
        return iter(self._events)

    def steady(self):
        return iter(self._steady)


def trace_of(tmp_path, *events, steady=(), **options):
    write_trace(Made(tmp_path, events, steady), tmp_path / TRACE, **options)
    return load(tmp_path / TRACE)


class Events:
    """Makes events of one process; times are microseconds."""

    def __init__(self):
        self.seq = 0

    def __call__(self, kind, t, tid=1, edge="instant", data=None, pid=1, **rest):
        self.seq += 1
        base = {"t_ns": t * 1000, "seq": self.seq, "pid": pid, "tid": tid, "edge": edge}
        base |= {"thread": rest.pop("thread", f"thread-{tid}")}
        return kind(**base, **({} if data is None else {"data": data}), **rest)

    def span(self, kind, t0, t1, tid=1, data=None, **rest):
        return (
            self(kind, t0, tid, "enter", data, **rest),
            self(kind, t1, tid, "exit", data, **rest),
        )


@pytest.fixture
def make():
    return Events()


@pytest.mark.parametrize(
    "path", sorted(RECORDINGS.glob("*/events.jsonl")), ids=lambda path: path.parent.name
)
def test_a_real_recording_is_shown_whole(path, tmp_path) -> None:
    recording = Recording(path.parent)
    events = list(recording.events())
    write_trace(recording, tmp_path / TRACE)
    trace = load(tmp_path / TRACE)

    def entered(kind):
        return sum(isinstance(e, kind) and e.edge == "enter" for e in events)

    assert len(trace.all("dynamo_compile")) == entered(schema.Compile)
    assert len(trace.all("fx_trace")) == entered(schema.FxTrace)
    assert len(trace.all("backward_compile")) == entered(schema.BackwardCompile)
    assert len(trace.all("lock_wait")) == entered(schema.LockWait)
    starts = [e for e in events if isinstance(e, schema.ThreadStart)]
    assert {(e.pid, e.data.child_tid) for e in starts} <= trace.names.keys()
    assert {(e.pid, e.tid) for e in events} <= trace.names.keys()
    errors = [
        mark for track in trace.instants.values() for mark in track if mark[2] == "thread_error"
    ]
    assert len(errors) == sum(isinstance(e, schema.ThreadError) for e in events)
    assert trace.other == {"clock": "CLOCK_MONOTONIC", "cutAfter": None, "every": 1}
    # Each start has its arrow; so has each wait for a thread whose compile was seen.
    started = [target for source, target in trace.arrows if source[1].cat == "thread_start"]
    assert [(pid, tid) for (pid, tid), _ in started] == [(e.pid, e.data.child_tid) for e in starts]
    waits = [(s.cat, f.cat) for (_, s), (_, f) in trace.arrows if s.cat != "thread_start"]
    assert set(waits) <= {("dynamo_compile", "lock_wait"), ("fx_trace", "lock_wait")}
    assert len(waits) <= len(trace.all("lock_wait"))


def test_a_stampede_shows_who_waited_for_whose_compile(tmp_path) -> None:
    write_trace(Recording(RECORDINGS / "grad_mode"), tmp_path / TRACE)
    trace = load(tmp_path / TRACE)
    names = trace.names
    waits = {
        (names[f[0]], f[1].name): (names[s[0]], s[1].name)
        for s, f in trace.arrows
        if f[1].cat == "lock_wait"
    }
    assert waits == {
        ("drafter-1", "waits for the compile lock"): ("drafter-0", "compiles block [0/1]"),
        ("drafter-2", "waits for the compile lock"): ("drafter-0", "compiles block [0/1]"),
    }
    lives = {s[1].name: names[f[0]] for s, f in trace.arrows if s[1].cat == "thread_start"}
    assert lives == {f"starts drafter-{n}": f"drafter-{n}" for n in range(3)}


def test_a_wait_recorded_before_the_owners_compile_gets_its_arrow_too(make, tmp_path) -> None:
    lock = schema.LockWaitData(lock="compile_lock", owner_tid=1)
    compiles = schema.CompileData(code=BLOCK)
    trace = trace_of(
        tmp_path,
        make(schema.LockWait, 10, 2, "enter", lock),
        make(schema.Compile, 12, 1, "enter", compiles, compile_id="0/0"),
        make(schema.LockWait, 11, 3, "enter", lock),
        make(schema.Compile, 50, 1, "exit", compiles, compile_id="0/0"),
        make(schema.LockWait, 51, 2, "exit", lock),
        make(schema.LockWait, 52, 3, "exit", lock),
    )
    arrows = [(s[0][1], s[1].name, f[0][1]) for s, f in trace.arrows]
    assert sorted(arrows) == [(1, "compiles block [0/0]", 2), (1, "compiles block [0/0]", 3)]


def test_what_has_no_end_is_closed_when_the_recording_ends(make, tmp_path) -> None:
    trace = trace_of(
        tmp_path,
        make(schema.Compile, 5, 1, "enter", schema.CompileData(code=BLOCK)),
        make(schema.FxTrace, 6, 1, "enter", schema.FxTraceData(tracer="T")),
        make(schema.Backward, 90, 2, data=schema.BackwardData()),
    )
    assert [(each.ended, each.args["cut"]) for each in trace.slices[1, 1]] == [
        (85.0, "no end was recorded"),
        (85.0, "no end was recorded"),
    ]


def test_an_outer_end_closes_what_is_open_inside_it_and_a_stray_end_nothing(make, tmp_path) -> None:
    compiles = schema.CompileData(code=BLOCK)
    trace_data = schema.FxTraceData(tracer="T")
    trace = trace_of(
        tmp_path,
        make(schema.FxTrace, 1, 1, "exit", trace_data),
        make(schema.Compile, 5, 1, "enter", compiles),
        make(schema.FxTrace, 6, 1, "enter", trace_data),
        make(schema.Compile, 9, 1, "exit", compiles),
        make(schema.FxTrace, 12, 1, "exit", trace_data),
    )
    assert [(each.cat, each.began, each.ended) for each in trace.slices[1, 1]] == [
        ("dynamo_compile", 4.0, 8.0),
        ("fx_trace", 5.0, 8.0),
    ]


def test_steps_have_a_track_beside_their_thread_and_never_overlap(make, tmp_path) -> None:
    def step(t, number, seconds, tid):
        data = program.StepData(step=number, seconds=seconds, tokens=8)
        return make(schema.Step, t, tid, data=data)

    header = make(schema.Header, 0, data=program.HeaderData(**HEADER))
    steps = [step(10_000, 0, 0.008, 2), step(11_000, 0, 0.001, 3), step(19_000, 1, 0.0095, 2)]
    trace = trace_of(tmp_path, header, steady=steps)
    assert [(s.began, s.ended, s.args["step"]) for s in trace.asides[1, "step", "step 2"]] == [
        (2000.0, 10_000.0, 0),
        (10_000.0, 19_000.0, 1),  # it began before the one before had ended, by its own clock
    ]
    assert [(s.began, s.ended) for s in trace.asides[1, "step", "step 3"]] == [(10_000.0, 11_000.0)]


def test_samples_of_memory_are_counters_of_their_device(make, tmp_path) -> None:
    def sample(t, device, allocated, reserved=0):
        data = schema.MemoryData(device=device, allocated=allocated, reserved=reserved, total=99)
        return make(schema.Memory, t, data=data)

    steady = [sample(10, "cuda:0", 5, 8), sample(11, "cpu", 3), sample(30, "cuda:0", 7, 8)]
    header = make(schema.Header, 0, data=program.HeaderData(**HEADER))
    trace = trace_of(tmp_path, header, steady=steady)
    assert trace.counters == {
        (1, "memory cuda:0"): [
            (10.0, {"allocated": 5, "reserved": 8}),
            (30.0, {"allocated": 7, "reserved": 8}),
        ],
        (1, "memory cpu"): [(11.0, {"allocated": 3})],
    }


def test_a_trainers_recording_has_its_steps(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("header", HEADER)
    for number in range(5):
        recorder.emit("step", {"step": number, "tokens": 3, "seconds": 1e-6})
    write_trace(Recording(tmp_path), tmp_path / TRACE)
    trace = load(tmp_path / TRACE)
    (steps,) = trace.asides.values()
    assert [each.args["step"] for each in steps] == [0, 1, 2, 3, 4]
    assert trace.processes == {os.getpid(): "~/train.py --steps 3"}
    assert (tmp_path / TRACE).stat().st_mode & 0o077 == 0


def test_nothing_in_it_tells_secrets_homes_or_control_bytes(make, tmp_path) -> None:
    message = "no \x00 /data/ada/x password=hunter2 \u202e \udcff" + "y" * 9000
    frames = (Frame("/data/ada/src/p.py", 3, "f", user=True),)
    error = program.ThreadErrorData(
        via="thread", chain=(ErrorLink(id=1, type="ValueError", message=message),)
    )
    trace = trace_of(
        tmp_path,
        make(schema.Header, 0, data=program.HeaderData(**HEADER)),
        make(schema.ThreadError, 4, 2, data=error, where=frames, thread="/data/ada \x07"),
    )
    text = (tmp_path / TRACE).read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert "/data/ada" not in text
    assert not any(c in text for c in "\x00\x07\u202e")
    ((_, name, _, args),) = trace.instants[1, 2]
    assert name == "error: ValueError"
    assert args["message"].startswith("no \\x00 ~/x password=*** \\u202e")
    assert len(args["message"]) < 600
    assert args["at"] == "src/p.py:3 f"


def test_a_number_given_again_to_a_later_thread_is_a_second_life(make, tmp_path) -> None:
    def start(t, name):
        data = program.ThreadStartData(child_tid=7, name=name)
        return make(schema.ThreadStart, t, 1, data=data)

    trace = trace_of(
        tmp_path,
        start(1, "a"),
        make(schema.Compile, 2, 7, "enter", schema.CompileData(code=BLOCK), thread="a"),
        start(9, "b"),
        make(schema.ThreadEnd, 12, 7, thread="b"),
    )
    lives = [(each.name, each.ended) for each in trace.all("thread")]
    assert lives == [("a", 8.0), ("b", 11.0)]


def test_what_does_not_fit_is_left_out_and_said(make, tmp_path) -> None:
    events = [make(schema.Backward, n, data=schema.BackwardData()) for n in range(50)]
    trace = trace_of(tmp_path, *events, limit=20)
    assert len(trace.instants[1, 1]) == 20
    assert trace.other["cutAfter"] == 20


def test_of_too_many_steps_every_so_manieth_is_shown(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("header", HEADER)
    for number in range(1000):
        recorder.emit("step", {"step": number, "tokens": 3, "seconds": 1e-6})
    write_trace(Recording(tmp_path), tmp_path / TRACE, limit=100)
    trace = load(tmp_path / TRACE)
    (steps,) = trace.asides.values()
    numbers = [each.args["step"] for each in steps]
    assert 50 <= len(numbers) <= 100
    strides = {b - a for a, b in itertools.pairwise(numbers)}
    assert numbers[-1] > 900  # of the whole run, not of its beginning
    assert strides == {trace.other["every"]}


def test_memory_does_not_grow_with_the_recording(tmp_path) -> None:
    def peak(count):
        def events():
            make = Events()
            for number in range(count // 2):
                data = schema.CompileData(code=BLOCK)
                yield from make.span(
                    schema.Compile, number, number + 1, number % 8, data, compile_id=f"0/{number}"
                )

        gc.collect()  # else what is garbage already counts or not, as it happens to be collected
        tracemalloc.start()
        write_trace(Made(tmp_path, events()), tmp_path / TRACE)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(100)
    few, many = peak(8_000), peak(40_000)
    assert many < few + 200_000  # what was cached of names is full by then


@pytest.mark.parametrize("over", ["the thread", "what was around the wait"])
def test_a_wait_that_is_over_gets_no_arrow_from_a_later_compile(over, tmp_path, make) -> None:
    phase = program.PhaseData(name="warmup")
    trace = trace_of(
        tmp_path,
        make(schema.Phase, 0, 1, "enter", phase),
        make(schema.LockWait, 1, 1, "enter", schema.LockWaitData(lock="l", owner_tid=2)),
        make(schema.ThreadEnd, 2, 1)
        if over == "the thread"
        else make(schema.Phase, 2, 1, "exit", phase),
        make(schema.Compile, 3, 2, "enter", schema.CompileData(code=BLOCK)),
    )
    assert not trace.arrows


KINDS = st.sampled_from(
    [
        (schema.Compile, schema.CompileData(code=BLOCK)),
        (schema.FxTrace, schema.FxTraceData(tracer="T")),
        (schema.LockWait, schema.LockWaitData(lock="l", owner_tid=1)),
        (schema.LockWait, schema.LockWaitData(lock="l", owner_tid=2)),
        (schema.BackwardCompile, schema.BackwardCompileData()),
        (schema.Phase, program.PhaseData(name="warmup")),
        (schema.ThreadStart, program.ThreadStartData(child_tid=2, name="two")),
        (schema.ThreadEnd, None),
        (schema.Step, program.StepData(step=1, seconds=2e-6)),
    ]
)
ANY = st.tuples(
    KINDS, st.integers(0, 12), st.integers(1, 3), st.sampled_from(["enter", "exit", "instant"])
)


@settings(max_examples=400)
@given(st.lists(ANY, max_size=25))
def test_events_in_any_order_can_be_drawn(tmp_path_factory, drawn) -> None:
    make = Events()
    events = [make(kind, t, tid, edge, data) for (kind, data), t, tid, edge in drawn]
    trace_of(tmp_path_factory.getbasetemp(), *events)


def test_perfettos_own_reader_takes_it(tmp_path) -> None:
    reader = pytest.importorskip("perfetto.trace_processor")
    binary = os.environ.get("TRACE_PROCESSOR_SHELL")
    if not binary:
        pytest.skip("TRACE_PROCESSOR_SHELL names no binary of Perfetto's")
    write_trace(Recording(RECORDINGS / "grad_mode"), tmp_path / TRACE)
    config = reader.TraceProcessorConfig(bin_path=binary)
    with reader.TraceProcessor(trace=str(tmp_path / TRACE), config=config) as processor:
        compiles = "select count(*) n from slice where category = 'dynamo_compile'"
        assert [row.n for row in processor.query(compiles)] == [4]
        bad = "select sum(value) n from stats where severity in ('error', 'data_loss')"
        assert [row.n for row in processor.query(bad)] == [0]
        assert [row.n for row in processor.query("select count(*) n from flow")] == [5]
