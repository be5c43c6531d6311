"""Threads that had one native id, one after another, are kept apart."""

import pytest

from harness.diagnosis.build import diagnose
from harness.timeline import builder
from harness.timeline.lives import Lives
from harness.timeline.recording import Recording

from ..causes.build import MAIN, Script, context, frames

A = 4001
GRAD_MODE = "0/0: GLOBAL_STATE changed: grad_mode "


@pytest.fixture
def script(tmp_path):
    script = Script(tmp_path / "run")
    script.compile(MAIN, "0/0", ctx=context(grad=False))
    return script


def lives(folder):
    (timeline,) = Recording(folder).timelines()
    threads = [t for t in timeline.threads.values() if t.native == A]
    return timeline, sorted(threads, key=lambda thread: thread.life)


def live(script, name, *, ctx=None, start_last=False):
    """A whole life under the id A: start, a compiled call, end."""
    if not start_last:
        script.thread(A, name)
    script.names[A] = name
    script.call(A, ctx=ctx)
    if start_last:
        script.thread(A, name)
    script.add("thread_end", A)


def test_a_start_after_an_end_is_another_thread(script):
    live(script, "first", ctx=context(grad=False))
    live(script, "second")
    timeline, (first, second) = lives(script.finish())
    assert (first.name, second.name) == ("first", "second")
    assert first.ended
    assert second.ended
    assert first.t1 < second.t0
    assert [t.context.grad_mode for t in (first, second)] == [False, True]
    assert [timeline.name(t.tid) for t in (first, second)] == ["first", "second"]
    history = timeline.codes[1]
    assert history.sightings[first.tid].t1 < history.sightings[second.tid].t0


def test_the_next_ones_own_events_may_come_before_its_start(script):
    live(script, "first")
    live(script, "second", start_last=True)
    _, (first, second) = lives(script.finish())
    assert (first.name, second.name) == ("first", "second")
    assert second.creator == MAIN
    assert first.creation_seq < second.creation_seq


def test_a_short_life_whose_start_is_written_after_its_end_is_one(script):
    script.names[A] = "short"
    script.call(A)
    script.add("thread_end", A)
    script.thread(A, "short")
    _, (only,) = lives(script.finish())
    assert only.creator == MAIN
    assert only.ended


def test_a_second_start_ends_a_life_of_which_the_end_was_not_seen(script):
    script.thread(A, "first")
    script.call(A)
    live(script, "second")
    _, found = lives(script.finish())
    assert [t.name for t in found] == ["first", "second"]


def test_a_start_written_when_the_starter_had_ended_gives_it_no_new_life(script):
    """A thread's start is written with its own first event, however long after."""
    live(script, "starter")
    began = script.lines[-2]["t_ns"] + 1
    script.add("thread_start", A, {"child_tid": 4002, "name": "child"}, where=frames("main"))
    script.lines[-1]["t_ns"] = began
    timeline, (only,) = lives(script.finish())
    assert only.name == "starter"
    assert timeline.threads[4002].creator == A
    assert timeline.clock_back == 0


def test_what_others_say_of_an_id_is_of_the_thread_that_had_it_then(script):
    live(script, "first")
    script.thread(A, "second")
    script.names[A] = "second"
    script.begin(A, "0/1")
    script.thread(4002, "other")
    script.wait(4002, A, "enter")
    script.add("block_mask", 4002, {"compiling_tids": [A]})
    timeline, (_, second) = lives(script.finish())
    assert timeline.lock_waits[0].owner == second.tid
    assert timeline.block_masks[0].compiling == (second.tid,)


def test_steps_go_to_the_life_that_made_them(script):
    script.thread(A, "first")
    steps = [script.add("step", A, {"step": 1}), script.add("step", A, {"step": 2})]
    script.add("thread_end", A)
    live(script, "second")
    steps += [script.add("step", A, {"step": 3})]
    folder = script.finish()
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    steady = [line for line in lines if '"step"' in line]
    (folder / "events.jsonl").write_text("".join(line for line in lines if '"step"' not in line))
    (folder / "steady-4000-000001.jsonl").write_text("".join(steady))
    timeline, found = lives(folder)
    assert [t.steps for t in found] == [2, 1]
    assert timeline.lost == 0


def test_a_later_life_that_misses_is_not_the_thread_that_made_the_entry(script):
    """One id for both: merged, the thread would have made the entry that it missed itself."""
    script.names[A] = "warmer"
    script.thread(A, "warmer")
    script.compile(
        A, "1/0", of={"id": 2, "name": "g", "file": "m.py", "line": 1}, ctx=context(grad=False)
    )
    script.add("thread_end", A)
    script.names[A] = "trainer"
    script.thread(A, "trainer")
    script.miss(A, of={"id": 2, "name": "g", "file": "m.py", "line": 1})
    script.compile(
        A,
        "1/1",
        of={"id": 2, "name": "g", "file": "m.py", "line": 1},
        reasons=[GRAD_MODE.replace("0/0", "1/0")],
    )
    report = diagnose(script.finish())
    (finding,) = report.findings
    assert finding.code == "CR101"
    assert [(t.tid, t.life, t.name) for t in finding.threads] == [(A, 2, "trainer")]


def test_thousands_of_lives_of_many_ids_take_little_room():
    """An id is given again and again; a hostile recording does so with any number of them."""
    of = Lives()
    for life in range(1, 3001):
        of.begin(A, 10 * life)
        assert of.number(A, 10 * life) == A + (life << 32)
    assert of.number(A, 10 * 2999 + 5) == A + (2999 << 32)
    for tid in range(10_000, 60_000):
        of.begin(tid, 5)
    assert sum(of.shared(tid) for tid in range(10_000, 60_000)) < 20_000
    assert sum(map(len, of._begins.values())) < 20_000
    assert of.number(59_999, 6) == 59_999, "not told apart, and not mixed up with another one"


def test_reads_of_futures_beyond_bounds_are_counted(script, monkeypatch):
    monkeypatch.setattr(builder, "_MAX_READS", 4)
    script.call(MAIN)
    for future in (1, 2, 3, 4, 4, 5, 6):
        script.add("future_read", MAIN, {"future": future})
    script.error(A, "future", "ValueError", "bad", future=7)
    folder = script.finish()
    (timeline,) = Recording(folder).timelines()
    assert (timeline.futures_read, timeline.folded.reads) == ({1, 2, 3, 4}, 2)
    report = diagnose(folder)
    (finding,) = report.findings
    assert (finding.code, finding.statements[0].certainty) == ("CR901", "inferred")
    assert any("2 reads of futures" in item.reason for item in report.not_watched)
