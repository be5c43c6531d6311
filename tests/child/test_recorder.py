"""The event log: whole lines whatever ends the process, bounded where it must be."""

import json
import os
import signal
import threading
import time

import msgspec
import pytest

from harness.child.bounds import worth_recording
from harness.child.recorder import Recorder
from harness.events.schema import (
    Event,
    GuardMiss,
    Header,
    Phase,
    Probe,
    Step,
    ThreadEnd,
    ThreadStart,
)

# Recorders in the test's own process are left without `end`; only children write one.


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_an_event_has_what_every_event_has(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    before = time.monotonic_ns()
    recorder.local.phase = "warmup"
    seq = recorder.emit("phase", {"name": "warmup"}, edge="enter", compile_id="0/1", stack=True)
    (event,) = [msgspec.json.decode(x, type=Event) for x in _raw(tmp_path)]
    assert isinstance(event, Phase)
    assert (event.seq, event.pid, event.tid) == (seq, os.getpid(), threading.get_native_id())
    assert before <= event.t_ns <= time.monotonic_ns()
    assert (event.thread, event.edge, event.phase) == ("MainThread", "enter", "warmup")
    assert event.compile_id == "0/1"
    here = event.where[0]
    assert (here.file, here.function, here.user) == (
        __file__,
        "test_an_event_has_what_every_event_has",
        True,
    )


def test_a_steady_event_may_bring_its_data_as_json(tmp_path) -> None:
    recorder, seen = Recorder(str(tmp_path)), []
    recorder.noted = lambda *event: seen.append(event)  # type: ignore[method-assign]
    recorder.emit("step", {"step": 4, "tokens": 8, "seconds": 0.5})
    recorder.emit_steady("step", '{"step": 4, "tokens": 8, "seconds": 0.5}')
    (file,) = tmp_path.glob("steady-*")
    events = [msgspec.json.decode(x, type=Event) for x in file.read_bytes().splitlines()]
    one, other = (msgspec.structs.replace(event, seq=0, t_ns=0) for event in events)
    assert isinstance(one, Step)
    assert one == other
    assert seen == [("step", "instant")] * 2
    assert recorder.emit_steady("phase", {"name": "x"}) == 0
    assert (recorder.lost, _raw(tmp_path)) == (1, [])


def test_a_name_that_is_no_plain_word_is_one_in_every_event(tmp_path, monkeypatch) -> None:
    recorder = Recorder(str(tmp_path))
    for name in ('a "b"', "ü\n", "a"):
        monkeypatch.setattr(threading.current_thread(), "name", name)
        recorder.local.phase = name
        recorder.emit("phase", {"name": name}, edge="enter")
    events = [msgspec.json.decode(x, type=Event) for x in _raw(tmp_path)]
    assert [(event.thread, event.phase, event.data.name) for event in events] == [
        (name, name, name) for name in ('a "b"', "ü\n", "a")
    ]


def _raw(folder) -> list[bytes]:
    return (folder / "events.jsonl").read_bytes().splitlines()


def test_control_bytes_and_lone_surrogates_stay_on_one_ascii_line(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    text = "index to be \x00, actual \x01\n\x1b[2J \ud800 \u2028 \x85"
    recorder.emit("probe", {"name": "x", "state": "failed", "reason": text})
    (line,) = _raw(tmp_path)
    assert all(32 <= byte < 127 for byte in line)
    assert msgspec.json.decode(line)["data"]["reason"] == text.replace("\ud800", "?")


def test_what_json_cannot_hold_is_written_as_its_repr(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    assert recorder.emit("step", {"step": object}) > 0
    assert recorder.emit("step", {("a", "key"): 1}) == 0  # and this cannot be written at all
    assert recorder.lost == 1


def test_a_line_cut_short_by_a_full_disk_is_counted_and_later_lines_are_whole(run) -> None:
    program = """
        import os, resource, sys
        from _compile_race_child import boot
        sys.dont_write_bytecode = True  # a .pyc that is cut short is taken for whole (gh-126606)
        recorder = boot._session._recorder
        size = os.stat(recorder.folder + "/events.jsonl").st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The kernel cuts the first line and refuses the second.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
        print(recorder.emit("thread_end"), recorder.emit("thread_end"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        print(recorder.emit("thread_end") > 0, recorder.lost)
    """
    child = run(program)
    assert child.out == "0 0\nTrue 2\n", child.err
    readable, torn = [], []
    for line in _raw(child.folder):
        try:
            readable.append(json.loads(line)["point"])
        except ValueError:
            torn.append(line)
    assert readable.count("thread_end") == 1
    assert readable[-1] == "end"
    assert [len(line) for line in torn] == [20]


class Slow:
    """Takes until it is let go to be written as JSON."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        self.begun.set()
        assert self.go_on.wait(60)
        return "slow"


def test_the_end_names_events_that_other_threads_have_not_written(tmp_path) -> None:
    recorder, slow = Recorder(str(tmp_path)), Slow()
    written = recorder.emit("step", {"step": 1})
    assert recorder.emit("step", {("a", "key"): 1}) == 0  # lost, and not under way
    thread = threading.Thread(target=lambda: recorder.emit("thread_end", {"of": slow}))
    thread.start()
    assert slow.begun.wait(60)
    recorder.record_end("no data")
    slow.go_on.set()
    thread.join()
    recorder.record_end("")
    lines = [json.loads(line) for line in _raw(tmp_path)]
    first, last = (line for line in lines if line["point"] == "end")
    late = next(line for line in lines if line["point"] == "thread_end")
    assert first["data"] == {"exit_text": "no data", "under_way": [late["seq"]]}
    assert written < late["seq"] < first["seq"]
    assert "data" not in last


def test_the_first_eight_and_then_powers_of_two() -> None:
    written = [n for n in range(1, 2000) if worth_recording(n)]
    assert written == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024]


def test_counted_events_are_bounded_per_kind_and_thread(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))

    def loop() -> None:
        for number in range(1000):
            recorder.emit_counted("guard_miss", number % 2, {})

    loop()
    other = threading.Thread(target=loop)
    other.start()
    other.join()
    events = [msgspec.json.decode(line, type=Event) for line in _raw(tmp_path)]
    assert {type(event) for event in events} == {GuardMiss}
    counts = [event.data.count for event in events if event.thread == "MainThread"]
    assert counts == sorted([n for n in range(1, 501) if worth_recording(n)] * 2)
    assert len(events) == 2 * len(counts)


def test_steady_events_go_to_segments_of_which_the_oldest_are_deleted(tmp_path) -> None:
    bound = 1 << 20
    recorder = Recorder(str(tmp_path), max_steady_bytes=bound)
    for number in range(20_000):
        recorder.emit("step", {"step": number})
    segments = sorted(tmp_path.glob("steady-*.jsonl"))
    assert sum(path.stat().st_size for path in segments) <= bound
    steps = [event["data"]["step"] for path in segments for event in lines(path)]
    assert steps == list(range(steps[0], 20_000))
    assert steps[0] > 0
    assert _raw(tmp_path) == []


def test_a_segment_that_is_gone_already_stops_no_recording(tmp_path) -> None:
    recorder = Recorder(str(tmp_path), max_steady_bytes=1)  # the least: eight of 64 KiB
    for number in range(20_000):
        recorder.emit("step", {"step": number})
        if number == 100:
            (first,) = tmp_path.glob("steady-*.jsonl")
            first.unlink()
    assert recorder.lost == 0
    assert max(tmp_path.glob("steady-*.jsonl")).name > f"steady-{os.getpid()}-000009"


def test_a_fork_forgets_what_other_threads_were_inside_of(tmp_path) -> None:
    recorder = Recorder(str(tmp_path), lazy=True)
    kept = (recorder.compiling, recorder.tracing, recorder.in_backward)
    for depths in kept:
        depths[1] = 1
    recorder.after_fork()
    assert (recorder.compiling, recorder.tracing, recorder.in_backward) == ({}, {}, {})


def test_a_lazy_recorder_starts_its_file_with_header_and_probes(tmp_path) -> None:
    recorder = Recorder(str(tmp_path), lazy=True)
    recorder.emit("header", {"schema": 1})
    recorder.emit("probe", {"name": "a", "state": "idle"})
    recorder.emit("probe", {"name": "b", "state": "live"})
    recorder.emit("probe", {"name": "a", "state": "live"})
    assert recorder.quiet
    assert list(tmp_path.iterdir()) == []
    recorder.emit("thread_end")
    recorder.emit("probe", {"name": "b", "state": "failed"})
    written = [(e["point"], e["data"].get("state")) for e in lines(tmp_path / "events.jsonl")[:3]]
    assert written == [("header", None), ("probe", "live"), ("probe", "live")]
    points = [event["point"] for event in lines(tmp_path / "events.jsonl")]
    assert points == ["header", "probe", "probe", "thread_end", "probe"]
    seqs = [event["seq"] for event in lines(tmp_path / "events.jsonl")]
    assert seqs == sorted(seqs)


def test_the_first_events_of_many_threads_follow_the_header(tmp_path) -> None:
    recorder = Recorder(str(tmp_path), lazy=True)
    recorder.emit("header", {"schema": 1})
    barrier = threading.Barrier(8)

    def first() -> None:
        barrier.wait()
        recorder.emit("thread_end")

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    points = [event["point"] for event in lines(tmp_path / "events.jsonl")]
    assert points == ["header"] + ["thread_end"] * 8


def test_a_program_that_closes_our_descriptor_does_not_get_our_lines(tmp_path) -> None:
    recorder = Recorder(str(tmp_path))
    recorder.emit("thread_end")
    ours = recorder._kept._descriptor
    with (tmp_path / "theirs").open("wb") as theirs:
        os.dup2(theirs.fileno(), ours)  # whichever number the kernel would have given out
        recorder.emit("thread_end")
        assert os.path.samestat(os.fstat(ours), os.fstat(theirs.fileno()))
    os.close(ours)
    assert (tmp_path / "theirs").read_bytes() == b""
    assert len(lines(tmp_path / "events.jsonl")) == 2


def test_sigkill_in_the_middle_of_writing_damages_no_line_but_the_last(start, run_folder) -> None:
    program = """
        import sys, threading
        from _compile_race_child import boot
        recorder = boot._session._recorder
        all_have_written = threading.Barrier(4)
        def write():
            recorder.emit("phase", {"name": "first"}, edge="enter")
            all_have_written.wait()
            while True: recorder.emit("phase", {"name": "x" * 3000}, edge="enter")
        threads = [threading.Thread(target=write) for _ in range(4)]
        for t in threads: t.start()
    """
    process = start(program)
    log = run_folder / "events.jsonl"
    while not log.exists() or log.stat().st_size < 1 << 20:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    *whole, last = log.read_bytes().split(b"\n")
    assert len(last) < 3000 + 1000  # the line of one event at most; mostly there is none
    events = [msgspec.json.decode(line, type=Event) for line in whole]
    phases = [event for event in events if isinstance(event, Phase)]
    assert len({event.tid for event in phases}) == 4
    assert len({event.seq for event in events}) == len(events)


def test_a_thousand_threads(run) -> None:
    program = """
        import threading
        from _compile_race_child import boot
        recorder = boot._session._recorder
        def work(number):
            for step in range(3): recorder.emit("step", {"step": step})
        for base in range(0, 1000, 100):
            threads = [threading.Thread(target=work, args=(n,), name=f"w-{n}")
                       for n in range(base, base + 100)]
            for t in threads: t.start()
            for t in threads: t.join()
    """
    child = run(program)
    starts = child.of(ThreadStart)
    assert sorted(event.data.name for event in starts) == sorted(f"w-{n}" for n in range(1000))
    assert {event.where[0].function for event in starts} == {"<module>"}
    assert len(child.of(ThreadEnd)) == 1000
    (steady,) = child.folder.glob("steady-*.jsonl")
    steps = [event for event in child.events(steady.name) if isinstance(event, Step)]
    assert len(steps) == 3000
    everything = [event.seq for event in child.events()] + [event.seq for event in steps]
    assert len(set(everything)) == len(everything)


def test_a_fork_that_does_something_records_under_its_own_pid(run) -> None:
    program = """
        import os, threading
        def work():
            t = threading.Thread(target=int, name="forked"); t.start(); t.join()
        quiet = os.fork()
        if not quiet: os._exit(0)
        busy = os.fork()
        if not busy:
            work(); os._exit(3)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (quiet, busy)]
        print(quiet, busy, *codes)
    """
    child = run(program)
    quiet, busy, code_of_quiet, code_of_busy = map(int, child.out.split())
    assert (code_of_quiet, code_of_busy) == (0, 3)
    assert child.files() == {"events.jsonl", f"events-{busy}.jsonl"}
    forked = child.events(f"events-{busy}.jsonl")
    assert isinstance(forked[0], Header)
    assert {event.pid for event in forked} == {busy}
    assert [event.data.name for event in forked if isinstance(event, ThreadStart)] == ["forked"]
    assert type(forked[-1]).__name__ == "End"
    assert quiet not in {event.pid for event in child.events()}


def test_a_fork_while_another_thread_records_is_not_locked(run) -> None:
    program = """
        import os, threading
        from _compile_race_child import boot
        recorder = boot._session._recorder
        stop = False
        def write():
            while not stop: recorder.emit("step", {"step": 1})
        thread = threading.Thread(target=write); thread.start()
        for _ in range(50):
            pid = os.fork()
            if not pid:
                recorder.emit("step", {"step": 2}); os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop = True; thread.join()
    """
    child = run(program)
    assert (child.code, child.err) == (0, "")
    assert len(child.files()) > 50


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "import os; os._exit(3)"])
def test_hooks_run_at_the_end_and_a_failing_one_stops_no_other(run, ending) -> None:
    program = f"""
        import atexit
        from _compile_race_child import boot
        recorder = boot._session._recorder
        def broken(): raise LookupError("gone")
        recorder.at_end += [broken, lambda: recorder.emit("thread_end")]
        @atexit.register
        def registered_by_the_program(): recorder.emit("phase", {{"name": "theirs"}})
        {ending}
    """
    child = run(program)
    assert child.code == (0 if ending == "pass" else 3)
    points = [type(event).__name__ for event in child.events()]
    assert points[-1] == "End"
    assert points.count("End") == points.count("ThreadEnd") == 1
    if "_exit" not in ending:  # which skips the program's own handlers
        assert points.index("Phase") < points.index("ThreadEnd")
    failed = [
        event.data
        for event in child.events()
        if isinstance(event, Probe) and event.data.name == "__main__ at the end"
    ]
    assert [(data.state, data.reason) for data in failed] == [("failed", "LookupError('gone')")]


def test_lost_events_are_told_at_the_end(run) -> None:
    program = """
        from _compile_race_child import boot
        boot._session._recorder.emit("phase", {(1, 2): 3})
    """
    child = run(program)
    probes = {event.data.name: event.data for event in child.of(Probe)}
    assert probes["recorder"].state == "failed"
    assert probes["recorder"].reason == "1 events could not be written"
