"""What a program can make the recorder write, however long it runs."""

import json
import threading

import msgspec
import pytest

from harness.child.bounds import KINDS, NOVEL, PER_KIND, PER_POINT, Bounds
from harness.child.recorder import Recorder
from harness.events.schema import (
    Event,
    FutureRead,
    LeftOut,
    Phase,
    ThreadEnd,
    ThreadError,
    ThreadStart,
    Wrapper,
)


def written(folder):
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Event) for line in lines]


def call(number, **data):
    code = {"id": number, "name": "f", "file": "f.py", "line": 1}
    return {"code": code, "first": True, **data}


def test_what_many_threads_do_alike_is_written_so_often_and_no_more():
    bounds = Bounds()
    admitted = [n for n in range(1, 100_001) if bounds.admit("wrapper", call(1))]
    assert admitted[:PER_KIND] == list(range(1, PER_KIND + 1))
    assert admitted[PER_KIND:] == [4096, 8192, 16384, 32768, 65536]


def test_ever_new_kinds_of_event_are_bounded_too():
    bounds = Bounds()
    admitted = sum(bounds.admit("wrapper", call(number)) for number in range(200_000))
    assert admitted <= PER_POINT + KINDS + 32


def test_what_is_new_after_a_long_night_is_written():
    bounds = Bounds()
    for _ in range(100_000):
        bounds.admit("wrapper", call(1))
    assert [bounds.admit("wrapper", call(2)) for _ in range(NOVEL + 1)][:NOVEL] == [True] * NOVEL
    assert bounds.admit("wrapper", call(1, fx_flag=True))
    assert bounds.admit("guard_miss", call(1))


def test_errors_of_one_place_are_fewer_than_other_events(tmp_path):
    recorder = Recorder(str(tmp_path))

    def error(kind, line):
        frame = ["f.py", line, "f", True]
        link = {"id": 1, "type": kind, "message": "", "frames": [frame], "relation": "self"}
        return {"via": "thread", "chain": [link]}

    for _ in range(5000):
        recorder.emit("thread_error", error("ValueError", 1))
    recorder.emit("thread_error", error("KeyError", 1))
    recorder.emit("thread_error", error("ValueError", 2))
    recorder.record_left_out()
    events = written(tmp_path)
    errors = [event for event in events if isinstance(event, ThreadError)]
    assert len(errors) == 256 + 4 + 2
    (*_, last) = [event for event in events if isinstance(event, LeftOut)]
    assert (last.data.of, last.data.count) == ("thread_error", 5000 - 256 - 4)


def test_what_probes_leave_out_at_the_very_end_is_counted_too(run):
    child = run(f"""
        from _compile_race_child import boot
        recorder = boot._session._recorder
        def at_end():
            for _ in range({PER_KIND} + 100): recorder.emit("guard_miss", {{}})
        recorder.at_end.append(at_end)
    """)
    assert child.of(LeftOut)[-1].data.count == 100


def test_what_is_left_out_takes_no_number_so_that_nothing_seems_lost(tmp_path):
    recorder = Recorder(str(tmp_path))
    for _ in range(3 * PER_KIND):
        recorder.emit("lock_wait", {"lock": "x"}, edge="enter")
    seqs = [event.seq for event in written(tmp_path)]
    assert seqs == list(range(1, len(seqs) + 1))


def test_an_exit_is_written_where_its_enter_was(run):
    """A program whose phases never end in number."""
    program = """
        from dflash_min import observe
        for number in range(5000):
            with observe.phase("evaluate"): pass
        with observe.phase("train"): pass
    """
    import os
    from pathlib import Path

    child = run(program, PYTHONPATH=os.pathsep.join([_site(), str(Path(__file__).parents[2])]))
    phases = child.of(Phase)
    assert len(phases) == 2 * (PER_KIND + 1 + 1)  # the 4096th, and the other one
    assert [event.edge for event in phases] == ["enter", "exit"] * (len(phases) // 2)
    assert phases[-1].data.name == "train"


def _site():
    from harness.supervise.launch import SITE

    return str(SITE)


def test_threads_all_night_and_the_one_that_has_something_to_say(run):
    program = """
        import threading
        from _compile_race_child import boot
        recorder = boot._session._recorder
        def start(target, name):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start(); thread.join()
        for number in range(3000): start(int, f"idle-{number}")
        def say(): recorder.emit("wrapper", {"first": True})
        def step(): recorder.emit("step", {"step": 1})
        start(say, "speaks")
        start(step, "steps")
    """
    child = run(program)
    starts, ends = child.of(ThreadStart), child.of(ThreadEnd)
    assert [event.data.name for event in starts[:2048]] == [f"idle-{n}" for n in range(2048)]
    (late,) = starts[2048:]
    assert (late.data.name, late.data.daemon, late.thread) == ("speaks", True, "MainThread")
    assert [frame.function for frame in late.where] == ["start", "<module>"]
    (spoke,) = child.of(Wrapper)
    assert (late.data.child_tid, late.seq) == (spoke.tid, spoke.seq - 1)
    assert late.t_ns < spoke.t_ns
    # Each that has a start has an end, and so a reused number is a new thread's.
    assert len(ends) == len(starts)
    assert ends[-1].tid == spoke.tid
    left_out = [event.data for event in child.of(LeftOut)]
    assert (left_out[-1].of, left_out[-1].count) == ("thread_start", 3000 - 2048 + 1)


def test_a_held_start_goes_with_its_thread(tmp_path):
    recorder = Recorder(str(tmp_path))
    thread = threading.Thread(target=int)
    recorder.hold_start(thread, {"name": "t", "daemon": False}, [])
    assert recorder.start_is_held(thread)
    assert not recorder.start_is_held(thread)
    assert not [name for name in vars(thread) if "compile_race" in name]


def test_futures_that_fail_all_night(run):
    program = """
        from concurrent.futures import ThreadPoolExecutor
        def fail(): raise LookupError("of its own")
        with ThreadPoolExecutor(1) as pool:
            for _ in range(2000): pool.submit(fail).exception()
    """
    child = run(program)
    errors = child.of(ThreadError)
    assert len(errors) == 256 + 2  # the 512th and the 1024th
    assert [event.data.future for event in child.of(FutureRead)] == [e.data.future for e in errors]


def test_a_thread_that_meets_ever_new_kinds_keeps_a_bounded_count(tmp_path):
    recorder = Recorder(str(tmp_path))
    for number in range(20_000):
        recorder.local.count(("wrapper", number))
    assert len(recorder.local.counts) <= 4097
    assert recorder.local.count(("wrapper", -1)) == 20_000 - 4096 + 1


@pytest.mark.parametrize("ending", ["pass", "import os; os.kill(os.getpid(), 9)"])
def test_what_was_left_out_is_told_whatever_the_ending(run, ending):
    program = f"""
        from _compile_race_child import boot
        recorder = boot._session._recorder
        for _ in range(10_000): recorder.emit("guard_miss", {{}})
        {ending}
    """
    child = run(program)
    raw = (child.folder / "events.jsonl").read_bytes().splitlines()
    told = [e["data"] for e in map(json.loads, raw) if e["point"] == "left_out"]
    exact = 10_000 - PER_KIND - 2  # the 4096th and the 8192nd
    assert told[-1]["of"] == "guard_miss"
    if ending == "pass":
        assert told[-1]["count"] == exact
    else:
        assert exact / 2 < told[-1]["count"] <= exact
